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


@dataclass(slots=True)
class _Method:
    """A proposer with its history."""

    proposer: Proposer
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)


@dataclass(slots=True, eq=False)
class _Pending:
    """What was drafted, by method, for a request of then so many tokens."""

    num_tokens: int
    drafts: dict[str, Draft] = field(default_factory=dict)


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
        self._pending: dict[RequestId, _Pending] = {}
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
        self._num_steps += 1
        self._learn(requests)
        if not requests:
            return []
        num_tokens = [len(request.token_ids) for request in requests]
        limits = [
            self._limit(request, depth) for request, depth in zip(requests, max_depths, strict=True)
        ]
        guesses = self._guesses(requests, limits, num_tokens)
        if self._is_fixed:
            depths = [len(guess.token_ids) for guess in guesses]
        else:
            candidates = [
                Candidate(request.request_id, count, guess.survivals)
                for request, count, guess in zip(requests, num_tokens, guesses, strict=True)
            ]
            depths = self._controller.choose(candidates, beside)
        self._slowdown = self._controller.slowdown_of(num_tokens, depths)
        return [guess.token_ids[:depth] for guess, depth in zip(guesses, depths, strict=True)]

    def forget(self, request_id: RequestId) -> None:
        self._pending.pop(request_id, None)
        self._controller.forget(request_id)
        for method in self._methods.values():
            method.proposer.forget(request_id)
            method.history.forget(request_id)

    def _learn(self, requests: Sequence[Request]) -> None:
        num_kept = {}
        for request in requests:
            pending = self._pending.pop(request.request_id, None)
            if pending is None:
                continue
            came = request.token_ids[pending.num_tokens :]
            num_kept[request.request_id] = len(came)
            for name, draft in pending.drafts.items():
                history = self._methods[name].history
                history.observe(request.request_id, draft.token_ids, draft.confidences, came)
        self._controller.learn(num_kept, self._slowdown)

    def _limit(self, request: Request, max_depth: int) -> int:
        """The deepest that this request may be drafted for."""
        wanted = request.params.speculative
        if not wanted.enabled:
            return 0
        limit = min(self._max_depth, max_depth)
        return limit if wanted.max_depth is None else min(limit, wanted.max_depth)

    def _guesses(
        self, requests: Sequence[Request], limits: Sequence[int], num_tokens: Sequence[int]
    ) -> list[_Guess]:
        """The best guess for each request, of the proposers that are asked for it."""
        price = self._controller.price(num_tokens)
        for request, count in zip(requests, num_tokens, strict=True):
            self._pending[request.request_id] = _Pending(count)
        best = [NO_GUESS] * len(requests)
        line = self._controller.line(num_tokens) if len(self._methods) > 1 else 0.0
        worths = [0.0] * len(requests)
        for name in self._methods:
            asked = self._asked(name, requests, limits, price)
            for idx, guess in self._ask(name, requests, asked):
                worth = sum(s - line for s in guess.survivals if s > line)
                if worth > worths[idx]:
                    best[idx], worths[idx] = guess, worth
        return best

    def _asked(
        self, name: str, requests: Sequence[Request], limits: Sequence[int], price: float
    ) -> list[int]:
        """How deep to ask this method for each request: to the limit, or not at all.

        Asking takes time as well; where a first guess is not right often enough to pay for it,
        only now and then.
        """
        least = 0.0 if self._is_fixed else price * self._methods[name].proposer.request_s
        return [
            limit if limit > 0 and self._is_worth_asking(name, request, least) else 0
            for request, limit in zip(requests, limits, strict=True)
        ]

    def _is_worth_asking(self, name: str, request: Request, least: float) -> bool:
        if request.params.speculative.method not in (None, "auto", name):
            return False
        explores = (self._num_steps + request.arrival) % EXPLORE_EVERY == 0
        return explores or self._methods[name].history.hit_rate(request.request_id) >= least

    def _ask(
        self, name: str, requests: Sequence[Request], depths: Sequence[int]
    ) -> Iterator[tuple[int, _Guess]]:
        """The guesses of one method, with the request each is for."""
        method = self._methods[name]
        drafts = method.proposer.propose(requests, depths)
        for idx, (request, depth, draft) in enumerate(zip(requests, depths, drafts, strict=True)):
            if depth == 0:
                continue
            self._pending[request.request_id].drafts[name] = draft
            if draft is not NO_DRAFT:
                survivals = method.history.survivals(request.request_id, draft.confidences)
                yield idx, _Guess(draft.token_ids, survivals)
