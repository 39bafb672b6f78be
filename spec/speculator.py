"""What the engine asks after every step: drafts for the next one, as deep as they pay.

    1. compare what came with what was drafted before          (`spec.acceptance`)
    2. ask the proposers, for requests where that is worth it   (`spec.ngram`, `spec.suffix`)
    3. let drafters draft, for requests whose usual drafts are worth more than those guesses and
       the passes, as deep as they are worth that               (`spec.drafter`)
    4. of what was guessed, take the best for each request
    5. choose all depths together, and trim                     (`spec.depth`)

Terms are those of `spec.proposer` and `spec.depth`. Implements `core.protocols.Speculator`.
Exercised by `pytest tests/unit/spec/test_speculator.py tests/cpu/spec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hasten.spec.compiled import AcceptanceHistory
from hasten.spec.depth import EXPLORE_EVERY, NO_DRAFTING, Drafting
from hasten.spec.proposer import NO_DRAFT, Draft
from hasten.spec.turn import NO_GUESS, Guess, Turn, worth_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hasten.core.latency import StepShape
    from hasten.core.request import Request, RequestId
    from hasten.spec.depth import DepthController
    from hasten.spec.drafter import DrafterProposer
    from hasten.spec.proposer import Proposer


WORTH_FADE = 0.9
"""What remains of the opinion on a method after one more draft."""
USUAL_FADE = 0.995
USUAL_PRIOR = 0.25
"""The worth of a draft, in tokens, over all requests; and before there were any."""
NEW_MARGIN = 1.5
"""A new request is thought to be worth at least so many times what asking takes: a few drafts."""
LAYOUT_S = 70e-6
"""What laying out drafts of several requests takes: without any, a step goes on in the batch of the
one before (`core.steady_decode`)."""
CONSIDERED, ALWAYS_CONSIDERED = 0.25, 0.25
"""Positions below this share of the survival that pays are not considered, but for those above
that survival: what rows are thought to cost may be wrong until some are tried."""


@dataclass(slots=True, eq=False)
class _Method:
    """A proposer, its history, and what its drafts have been worth to each request, in tokens,
    beyond those of the proposers asked before it.
    """

    proposer: Proposer
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    usual: float = USUAL_PRIOR
    worths: dict[RequestId, float] = field(default_factory=dict)
    next_turns: dict[RequestId, int] = field(default_factory=dict)

    def is_due(self, request_id: RequestId, turn: int) -> bool:
        """Whether it is to be asked: its drafts were worth that lately, or it is time to try."""
        return self.next_turns.get(request_id, 0) <= turn

    def note_worth(self, request_id: RequestId, worth: float, least: float, turn: int) -> None:
        """Take in what a draft was worth; asking was worth `least`, else it rests for a while."""
        before = self.worths.get(request_id)
        if before is None:
            before = max(self.usual, NEW_MARGIN * least)
        worths = self.worths[request_id] = before * WORTH_FADE + worth * (1 - WORTH_FADE)
        self.usual = self.usual * USUAL_FADE + worth * (1 - USUAL_FADE)
        self.next_turns[request_id] = _next_try(turn) if worths < least else turn

    def forget(self, request_id: RequestId) -> None:
        self.proposer.forget(request_id)
        self.history.forget(request_id)
        self.worths.pop(request_id, None)
        self.next_turns.pop(request_id, None)


@dataclass(slots=True, eq=False)
class _DraftingMethod:
    """A drafter and its history. Where a pass does not pay for these requests, it rests."""

    proposer: DrafterProposer
    history: AcceptanceHistory = field(default_factory=AcceptanceHistory)
    resting: Sequence[RequestId] = ()
    rest_ends: int = 0

    def is_resting(self, request_ids: Sequence[RequestId], turn: int) -> bool:
        return turn < self.rest_ends and request_ids == self.resting

    def rest(self, request_ids: Sequence[RequestId], turn: int) -> None:
        """Until all that rest are tried again, or the requests are others."""
        self.resting, self.rest_ends = request_ids, _next_try(turn)

    def forget(self, request_id: RequestId) -> None:
        self.proposer.forget(request_id)
        self.history.forget(request_id)


class _Pending(NamedTuple):
    """What a method drafted for a request of then so many tokens."""

    method: _Method | _DraftingMethod
    num_tokens: int
    draft: Draft


class Speculator:
    """Drafts with `proposers` and `drafters`, by name.

    At most `max_depth` deep, or always `fixed_depth`.
    """

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        controller: DepthController,
        max_depth: int,
        fixed_depth: int | None = None,
        drafters: Mapping[str, DrafterProposer] | None = None,
    ) -> None:
        self._methods = {name: _Method(proposer) for name, proposer in proposers.items()}
        self._drafters = {
            name: _DraftingMethod(drafter) for name, drafter in (drafters or {}).items()
        }
        self._controller = controller
        self._max_depth = max_depth if fixed_depth is None else fixed_depth
        self._is_fixed = fixed_depth is not None
        self._pending: dict[RequestId, list[_Pending]] = {}
        self._slowdown = 1.0
        # These need not be asked for before that step; a request that ends, or another, undoes it.
        self._resting: list[RequestId] = []
        self._rest_ends = 0

    @property
    def methods(self) -> frozenset[str]:
        return frozenset((*self._methods, *self._drafters, "auto"))

    @property
    def gain(self) -> float:
        return self._controller.gain

    @property
    def _num_steps(self) -> int:
        """Steps so far; what rests is tried in the ones in which the controller explores."""
        return self._controller.num_steps

    def speculate(
        self, requests: Sequence[Request], max_depths: Sequence[int], beside: StepShape
    ) -> list[Sequence[int]]:
        """See `core.protocols.Speculator`."""
        if not requests:
            return []
        request_ids = [request.request_id for request in requests]
        if self._num_steps + 1 < self._rest_ends and request_ids == self._resting:
            self._controller.learn(1.0, 1.0)
            return [()] * len(requests)
        self._learn(requests)
        limits = [
            self._limit(request, depth) for request, depth in zip(requests, max_depths, strict=True)
        ]
        drafters = {
            name: drafter
            for name, drafter in self._drafters.items()
            if not drafter.is_resting(request_ids, self._num_steps)
        }
        if not drafters and not self._is_anyone_due(requests, limits):
            self._slowdown = 1.0
            self._resting, self._rest_ends = request_ids, self._next_turn(requests)
            return [()] * len(requests)
        num_tokens = [len(request.token_ids) for request in requests]
        turn = Turn(requests, limits, num_tokens, beside)
        price = 0.0 if self._is_fixed else self._controller.price(num_tokens)
        line = self._controller.line(num_tokens, price)
        self._ask_all(turn, price, line)
        drafting_s = sum(
            self._draft(name, method, turn, price, line) for name, method in drafters.items()
        )
        if not turn.best:
            no_depths = [0] * len(requests)
            self._slowdown = self._controller.slowdown_of(num_tokens, no_depths, drafting_s)
            return [()] * len(requests)
        guesses = turn.guesses()
        depths = self._depths(turn, guesses, price)
        self._slowdown = self._controller.slowdown_of(num_tokens, depths, drafting_s)
        return [guess.token_ids[:depth] for guess, depth in zip(guesses, depths, strict=True)]

    def forget(self, request_id: RequestId) -> None:
        self._pending.pop(request_id, None)
        self._rest_ends = 0
        self._controller.forget(request_id)
        for method in self._methods.values():
            method.forget(request_id)
        for drafter in self._drafters.values():
            drafter.forget(request_id)

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

    def _depths(self, turn: Turn, guesses: Sequence[Guess], price: float) -> list[int]:
        if self._is_fixed:
            return [len(guess.token_ids) for guess in guesses]
        candidates = turn.candidates([guess.survivals for guess in guesses])
        layout = Drafting(LAYOUT_S) if len(candidates) > 1 else NO_DRAFTING
        return self._controller.choose(candidates, turn.beside, layout, price)

    def _ask_all(self, turn: Turn, price: float, line: float) -> None:
        """Ask the proposers that take hardly any time."""
        for name, method in self._methods.items():
            least = price * method.proposer.request_s
            depths = [
                limit if limit > 0 and self._is_due(name, method, request) else 0
                for request, limit in zip(turn.requests, turn.limits, strict=True)
            ]
            if not any(depths):
                continue
            drafts = method.proposer.propose(turn.requests, depths)
            for idx, guess in self._judge(method, turn, depths, drafts, _considered(line)):
                worth = worth_of(guess.survivals, line)
                added = max(worth - turn.worth_at(idx), 0.0)
                method.note_worth(turn.requests[idx].request_id, added, least, self._num_steps)
                turn.offer(idx, worth, guess)

    def _is_due(self, name: str, method: _Method, request: Request) -> bool:
        return method.is_due(request.request_id, self._num_steps) and _may_use(name, request)

    def _is_anyone_due(self, requests: Sequence[Request], limits: Sequence[int]) -> bool:
        return any(
            limit > 0 and self._is_due(name, method, request)
            for name, method in self._methods.items()
            for request, limit in zip(requests, limits, strict=True)
        )

    def _next_turn(self, requests: Sequence[Request]) -> int:
        """The first step for which any of these is to be asked for: until then all rest."""
        turns = [
            method.next_turns.get(request.request_id, 0)
            for name, method in self._methods.items()
            for request in requests
            if request.params.speculative.enabled and _may_use(name, request)
        ]
        turns += [drafter.rest_ends for drafter in self._drafters.values()]
        return min(turns, default=self._num_steps + EXPLORE_EVERY)

    def _draft(
        self, name: str, method: _DraftingMethod, turn: Turn, price: float, line: float
    ) -> float:
        """Let a drafter draft where that is worth it; returns the seconds that it takes, about."""
        drafter = method.proposer
        limits = [
            min(limit, drafter.limit(request)) if limit > 0 and _may_use(name, request) else 0
            for request, limit in zip(turn.requests, turn.limits, strict=True)
        ]
        if not any(limits):
            return 0.0
        drafting = drafter.drafting([n for n, d in zip(turn.num_tokens, limits, strict=True) if d])
        depths = limits
        if not self._is_fixed:
            expected = self._expected(method, turn, limits, price, line)
            depths = self._controller.plan(turn.candidates(expected), turn.beside, drafting, price)
            if not any(depths) and not turn.best:
                request_ids = [request.request_id for request in turn.requests]
                method.rest(request_ids, self._num_steps)
            depths = self._explore(depths, limits, method, turn)
        if not any(depths):
            return 0.0
        drafts = drafter.propose(turn.requests, depths, _considered(line))
        for idx, guess in self._judge(method, turn, depths, drafts, _considered(line)):
            turn.offer(idx, worth_of(guess.survivals, line), guess)
        return drafting.seconds(max(1, *(len(draft.token_ids) for draft in drafts)))

    def _expected(
        self,
        method: _DraftingMethod,
        turn: Turn,
        limits: Sequence[int],
        price: float,
        line: float,
    ) -> list[Sequence[float]]:
        """Survivals of the drafts to be made; none where a guess at hand is worth more."""
        expected: list[Sequence[float]] = []
        for idx, (request, limit) in enumerate(zip(turn.requests, limits, strict=True)):
            survivals = method.history.expected(request.request_id, limit, _considered(line))
            worth = worth_of(survivals, line) - price * method.proposer.catch_up_s(request)
            expected.append(survivals if worth > turn.worth_at(idx) else ())
        return expected

    def _explore(
        self, depths: list[int], limits: Sequence[int], method: _DraftingMethod, turn: Turn
    ) -> list[int]:
        """Where drafting was not worth it, now and then try one guess, for one request at hand."""
        turn_idx, is_rest = divmod(self._num_steps, EXPLORE_EVERY)
        if is_rest or any(depths):
            return depths
        near = [
            idx
            for idx, request in enumerate(turn.requests)
            if limits[idx] and method.proposer.catch_up_s(request) == 0.0
        ]
        if near:
            depths[near[turn_idx % len(near)]] = 1
        return depths

    def _judge(
        self,
        method: _Method | _DraftingMethod,
        turn: Turn,
        depths: Sequence[int],
        drafts: Sequence[Draft],
        least_survival: float,
    ) -> Iterator[tuple[int, Guess]]:
        """What one method's drafts are worth, with the index of the request that each is for."""
        for idx, (request, depth, draft) in enumerate(
            zip(turn.requests, depths, drafts, strict=True)
        ):
            if depth == 0:
                continue
            if draft is NO_DRAFT:
                yield idx, NO_GUESS
                continue
            pending = _Pending(method, turn.num_tokens[idx], draft)
            self._pending.setdefault(request.request_id, []).append(pending)
            survivals = method.history.survivals(
                request.request_id, draft.confidences, least_survival
            )
            yield idx, Guess(draft.token_ids, survivals)


def _considered(line: float) -> float:
    return min(CONSIDERED * line, ALWAYS_CONSIDERED)


def _next_try(turn: int) -> int:
    """The next turn in which all that rest are tried: most turns cost nothing at all."""
    return turn + EXPLORE_EVERY - turn % EXPLORE_EVERY


def _may_use(name: str, request: Request) -> bool:
    return request.params.speculative.method in (None, "auto", name)
