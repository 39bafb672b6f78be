"""What the engine asks after every step: drafts for the next one, as deep as they pay.

    1. compare what came with what was drafted before          (`spec.acceptance`)
    2. ask the proposers, for requests where that is worth it   (`spec.ngram`, `spec.suffix`)
    3. turn confidences into survivals, pick the best proposer for each request
    4. choose all depths together, and trim                     (`spec.depth`)

Terms are those of `spec.proposer` and `spec.depth`. Implements `core.protocols.Speculator`.
Exercised by `pytest tests/unit/spec/test_speculator.py tests/cpu/spec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hasten.spec.acceptance import AcceptanceHistory
from hasten.spec.depth import EXPLORE_EVERY, Candidate
from hasten.spec.proposer import NO_DRAFT, Draft

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hasten.core.latency import StepShape
    from hasten.core.request import Request, RequestId
    from hasten.spec.depth import DepthController
    from hasten.spec.proposer import Proposer


class _Guess(NamedTuple):
    """A draft with the survivals that its proposer's history gives it."""

    token_ids: Sequence[int]
    survivals: Sequence[float]


NO_GUESS = _Guess((), ())
WORTH_FADE = 0.9
"""What remains of the opinion on a method after one more draft."""
USUAL_FADE = 0.995
USUAL_PRIOR = 0.25
"""The worth of a draft, in tokens, over all requests; and before there were any."""
NEW_MARGIN = 1.5
"""A new request is thought to be worth at least so many times what asking takes: a few drafts."""
CONSIDERED = 0.25
"""Positions below this share of the survival that pays on average are not considered."""


@dataclass(slots=True, eq=False)
class _Method:
    """A proposer, its history, and what its drafts have been worth to each request, in tokens."""

    proposer: Proposer
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    worths: dict[RequestId, float] = field(default_factory=dict)
    usual: float = USUAL_PRIOR

    def is_worth(self, request_id: RequestId, least: float) -> bool:
        """Whether drafts for the request were worth `least` lately; a new one gets a chance."""
        return self.worths.get(request_id, least) >= least

    def note_worth(self, request_id: RequestId, worth: float, least: float) -> None:
        before = self.worths.get(request_id)
        if before is None:
            before = max(self.usual, NEW_MARGIN * least)
        self.worths[request_id] = before * WORTH_FADE + worth * (1 - WORTH_FADE)
        self.usual = self.usual * USUAL_FADE + worth * (1 - USUAL_FADE)

    def forget(self, request_id: RequestId) -> None:
        self.proposer.forget(request_id)
        self.history.forget(request_id)
        self.worths.pop(request_id, None)


class _Pending(NamedTuple):
    """What a method drafted for a request of then so many tokens."""

    method: _Method
    num_tokens: int
    draft: Draft


class Speculator:
    """Drafts with `proposers`, by name; at most `max_depth` deep, or always `fixed_depth`."""

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        controller: DepthController,
        max_depth: int,
        fixed_depth: int | None = None,
    ) -> None:
        self._methods = {name: _Method(proposer) for name, proposer in proposers.items()}
        self._controller = controller
        self._max_depth = max_depth if fixed_depth is None else fixed_depth
        self._is_fixed = fixed_depth is not None
        self._pending: dict[RequestId, list[_Pending]] = {}
        self._slowdown = 1.0
        self._num_steps = 0

    @property
    def methods(self) -> frozenset[str]:
        return frozenset((*self._methods, "auto"))

    @property
    def gain(self) -> float:
        return self._controller.gain

    def speculate(
        self, requests: Sequence[Request], max_depths: Sequence[int], beside: StepShape
    ) -> list[Sequence[int]]:
        """See `core.protocols.Speculator`."""
        if not requests:
            return []
        self._num_steps += 1
        self._learn(requests)
        num_tokens = [len(request.token_ids) for request in requests]
        limits = [
            self._limit(request, depth) for request, depth in zip(requests, max_depths, strict=True)
        ]
        guesses = self._guesses(requests, limits, num_tokens)
        if guesses is None:
            self._slowdown = 1.0
            return [()] * len(requests)
        depths = self._depths(requests, num_tokens, guesses, beside)
        self._slowdown = self._controller.slowdown_of(num_tokens, depths)
        return [guess.token_ids[:depth] for guess, depth in zip(guesses, depths, strict=True)]

    def forget(self, request_id: RequestId) -> None:
        self._pending.pop(request_id, None)
        self._controller.forget(request_id)
        for method in self._methods.values():
            method.forget(request_id)

    def _learn(self, requests: Sequence[Request]) -> None:
        """Compare what was drafted last with what came; without drafts, one token did."""
        num_accepted = 0
        for request in requests:
            drafted = self._pending.pop(request.request_id, ())
            came: Sequence[int] = ()
            for method, num_tokens, draft in drafted:
                came = request.token_ids[num_tokens:]
                method.history.observe(request.request_id, draft.token_ids, draft.confidences, came)
            num_accepted += max(len(came) - 1, 0)
        self._controller.learn(1 + num_accepted / len(requests), self._slowdown)

    def _limit(self, request: Request, max_depth: int) -> int:
        """The deepest that this request may be drafted for."""
        wanted = request.params.speculative
        if not wanted.enabled:
            return 0
        limit = min(self._max_depth, max_depth)
        return limit if wanted.max_depth is None else min(limit, wanted.max_depth)

    def _depths(
        self,
        requests: Sequence[Request],
        num_tokens: Sequence[int],
        guesses: Sequence[_Guess],
        beside: StepShape,
    ) -> list[int]:
        if self._is_fixed:
            return [len(guess.token_ids) for guess in guesses]
        candidates = [
            Candidate(request.request_id, count, guess.survivals)
            for request, count, guess in zip(requests, num_tokens, guesses, strict=True)
        ]
        return self._controller.choose(candidates, beside)

    def _guesses(
        self, requests: Sequence[Request], limits: Sequence[int], num_tokens: Sequence[int]
    ) -> list[_Guess] | None:
        """The best guess for each request, of the proposers that are asked; None without any."""
        price = 0.0 if self._is_fixed else self._controller.price(num_tokens)
        line = self._controller.line(num_tokens, price)
        best: dict[int, tuple[float, _Guess]] = {}
        for name, method in self._methods.items():
            least = price * method.proposer.request_s
            depths = [
                limit if limit > 0 and self._is_worth_asking(name, request, least) else 0
                for request, limit in zip(requests, limits, strict=True)
            ]
            if not any(depths):
                continue
            for idx, guess in self._ask(method, requests, depths, CONSIDERED * line):
                worth = sum([s - line for s in guess.survivals if s > line])
                method.note_worth(requests[idx].request_id, worth, least)
                if guess.token_ids and (idx not in best or worth > best[idx][0]):
                    best[idx] = worth, guess
        if not best:
            return None
        return [best[idx][1] if idx in best else NO_GUESS for idx in range(len(requests))]

    def _is_worth_asking(self, name: str, request: Request, least: float) -> bool:
        """Whether this method may draft for the request, and lately was worth its own time.

        Where it was not, it is asked now and then.
        """
        if request.params.speculative.method not in (None, "auto", name):
            return False
        if (self._num_steps + request.arrival) % EXPLORE_EVERY == 0:
            return True
        return self._methods[name].is_worth(request.request_id, least)

    def _ask(
        self,
        method: _Method,
        requests: Sequence[Request],
        depths: Sequence[int],
        least_survival: float,
    ) -> Iterator[tuple[int, _Guess]]:
        """The guesses of one method, with the index of the request that each is for."""
        drafts = method.proposer.propose(requests, depths)
        for idx, (request, depth, draft) in enumerate(zip(requests, depths, drafts, strict=True)):
            if depth == 0:
                continue
            if draft is NO_DRAFT:
                yield idx, NO_GUESS
                continue
            pending = _Pending(method, len(request.token_ids), draft)
            self._pending.setdefault(request.request_id, []).append(pending)
            survivals = method.history.survivals(
                request.request_id, draft.confidences, least_survival
            )
            yield idx, _Guess(draft.token_ids, survivals)
