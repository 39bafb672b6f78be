"""How deep to draft: as deep as a draft is worth the time that verifying it takes, and no deeper.

Terms: *survival* s_ij is the probability that request i's draft is right up to position j; it is
what one more drafted position adds to the expected number of tokens. *Price* (lambda) is what a
second is worth: the tokens per second that the engine makes in the long run.

The best long-run rate is that of the policy that maximises, in every step, expected tokens minus
price x seconds (fractional programming; Dinkelbach, 1967). So a step opens level j of drafting iff

    sum over i of max(0, s_ij - price x marginal verify time)  >  price x one more drafter pass

and takes from the open levels every position above the line. Times are staircases, not slopes, so
the marginal time is not one number: `choose` compares all numbers of levels and of positions. Since
survivals fall along a draft, the best k positions are the k largest, and the comparison is exact.

The price is the long-run *gain* over drafting nothing, which changes slowly, times the rate of the
present requests without drafts, which is known at once when the load changes. Prompts computed in
the same step make positions dearer or cheaper, but not time: each prompt brings its own tokens, so
its own time is the same for every depth.

Pure: it reads no clock and draws no random numbers. Exercised by
`pytest tests/unit/spec/test_depth.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hasten.core.latency import EMPTY_STEP, StepShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.latency import StepTimeModel
    from hasten.core.request import RequestId

HYSTERESIS = 0.005
"""Depths change only where that gains this share of a step's tokens."""
EXPLORE_EVERY = 32
"""One in so many steps drafts one position more than is worth it, for one request."""
GAIN_FADE = 1 - 1 / 32
"""What remains of the evidence on the gain after one more step."""
GAIN_PRIOR = 8.0
"""How many steps without gain a new engine is taken to have behind it."""
LINE_ROWS = 8
"""At most so many rows are taken for what one more costs, on average."""
LEAST_SURVIVAL = 1e-3
"""Positions less likely than this are not looked at."""


class Candidate(NamedTuple):
    """A request that decodes in the next step; `survivals` are those of its draft, if any."""

    request_id: RequestId
    num_tokens: int
    survivals: Sequence[float]


class Drafting(NamedTuple):
    """What drafting with a model takes: seconds once, and for each level."""

    start_s: float = 0.0
    pass_s: float = 0.0

    def seconds(self, num_levels: int) -> float:
        return self.start_s + self.pass_s * num_levels if num_levels else 0.0


NO_DRAFTING = Drafting()


class _Position(NamedTuple):
    """One drafted position and what it adds: expected tokens, less the price of attention."""

    worth: float
    level: int
    candidate_idx: int


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What no choice may exceed.

    With a target, steps that decode are predicted to take at most that; the scheduler cuts prompts
    to what drafts leave of it, but not below `min_chunk` tokens.
    """

    max_rows: int
    target_s: float | None = None
    min_chunk: int = 1

    def certain(self, beside: StepShape) -> StepShape:
        """What of `beside` the step computes however much time the drafts take."""
        if self.target_s is None or beside.num_tokens <= self.min_chunk:
            return beside
        return EMPTY_STEP.with_chunk(0, self.min_chunk, 1)


@dataclass(slots=True)
class DepthController:
    """Chooses depths for one engine."""

    step_times: StepTimeModel
    limits: StepLimits
    num_steps: int = 0  # taken in by `learn`
    _depths: dict[RequestId, int] = field(default_factory=dict)
    _tokens: float = GAIN_PRIOR
    _baseline: float = GAIN_PRIOR

    @property
    def gain(self) -> float:
        """Tokens per second lately, over those that drafting nothing would have made."""
        return max(self._tokens / self._baseline, 1.0)

    def price(self, num_tokens: Sequence[int]) -> float:
        """Tokens per second that requests of these lengths are worth, all decoding."""
        seconds = self.step_times.step_time(_decoding(num_tokens, EMPTY_STEP))
        return self.gain * len(num_tokens) / seconds if seconds > 0 else 0.0

    def line(self, num_tokens: Sequence[int], price: float) -> float:
        """The least survival that a drafted position needs to pay: costs are staircases."""
        times = self.step_times.row_times(_decoding(num_tokens, EMPTY_STEP), LINE_ROWS)
        return price * min([(times[i] - times[0]) / i for i in range(1, LINE_ROWS + 1)])

    def choose(
        self,
        candidates: Sequence[Candidate],
        beside: StepShape = EMPTY_STEP,
        drafting: Drafting = NO_DRAFTING,
        price: float | None = None,
    ) -> list[int]:
        """The depth of each candidate, at most the length of its survivals.

        `beside` is what the step computes of prompts, `drafting` what making the drafts takes.
        `price` is that of these candidates, where it is known already.
        """
        if not any(candidate.survivals for candidate in candidates):
            return [0] * len(candidates)
        choice = _Choice.among(self, candidates, beside, drafting, price)
        depths = choice.best()
        kept = [
            min(self._depths.get(candidate.request_id, 0), len(candidate.survivals))
            for candidate in candidates
        ]
        if depths != kept and choice.admits(kept):
            margin = HYSTERESIS * (len(candidates) + choice.expected_drafts(depths))
            if choice.value(depths) - choice.value(kept) <= margin:
                depths = kept
        for candidate, depth in zip(candidates, depths, strict=True):
            self._depths[candidate.request_id] = depth
        return self._explore(choice, depths)

    def plan(
        self,
        candidates: Sequence[Candidate],
        beside: StepShape,
        drafting: Drafting,
        price: float | None = None,
    ) -> list[int]:
        """How deep to draft with a model, which takes `drafting`: `survivals` are expected.

        What comes of it is trimmed by `choose`, which knows the drafts.
        """
        if not any(candidate.survivals for candidate in candidates):
            return [0] * len(candidates)
        return _Choice.among(self, candidates, beside, drafting, price).best()

    def learn(self, num_kept: float, slowdown: float) -> None:
        """Take in a step: the tokens that a request kept in it, on average, and what that took.

        `slowdown` is the step's time over that of the same step without drafts (`slowdown_of`).
        """
        self.num_steps += 1
        self._tokens = self._tokens * GAIN_FADE + num_kept
        self._baseline = self._baseline * GAIN_FADE + slowdown

    def slowdown_of(
        self, num_tokens: Sequence[int], depths: Sequence[int], drafting_s: float = 0.0
    ) -> float:
        """Predicted time of a step of these requests and depths over that without drafts.

        Making them took `drafting_s`.
        """
        base = _decoding(num_tokens, EMPTY_STEP)
        plain_s = self.step_times.step_time(base)
        num_drafts = sum(depths)
        if plain_s <= 0:
            return 1.0
        extra_s = self.step_times.row_times(base, num_drafts)
        reads = sum(length * depth for length, depth in zip(num_tokens, depths, strict=True))
        draft_s = extra_s[num_drafts] - extra_s[0] + self.step_times.pair_s * reads
        return 1.0 + (draft_s + drafting_s) / plain_s

    def forget(self, request_id: RequestId) -> None:
        self._depths.pop(request_id, None)

    def _explore(self, choice: _Choice, depths: list[int]) -> list[int]:
        """Now and then draft one position more, so that a low opinion of it can be corrected."""
        turn, is_rest = divmod(self.num_steps, EXPLORE_EVERY)
        if is_rest:
            return depths
        deeper = [i for i, c in enumerate(choice.candidates) if len(c.survivals) > depths[i]]
        if not deeper:
            return depths
        explored = depths.copy()
        explored[deeper[turn % len(deeper)]] += 1
        return explored if choice.admits(explored) else depths


@dataclass(slots=True)  # not frozen: one is made for every decision, and that takes thrice as long
class _Choice:
    """One step's candidates with their costs: values any depths, and finds the best."""

    candidates: Sequence[Candidate]
    price: float
    pair_s: float
    drafting: Drafting
    row_times: Sequence[float]  # of the step, by number of drafted positions
    max_drafts: int
    spare_s: float  # what drafts may add to the step, drafting included
    attention_s: float  # of each draft, at most

    @classmethod
    def among(
        cls,
        controller: DepthController,
        candidates: Sequence[Candidate],
        beside: StepShape,
        drafting: Drafting,
        price: float | None,
    ) -> _Choice:
        model, limits = controller.step_times, controller.limits
        num_tokens = [candidate.num_tokens for candidate in candidates]
        num_guesses = sum(len(candidate.survivals) for candidate in candidates)
        max_drafts = max(0, min(num_guesses, limits.max_rows - len(candidates)))
        base = _decoding(num_tokens, limits.certain(beside))
        row_times = model.row_times(base, max_drafts)
        spare_s = math.inf
        if limits.target_s is not None:
            spare_s = limits.target_s - model.step_time(base)
        attention_s = model.pair_s * max(num_tokens)
        if price is None:
            price = controller.price(num_tokens)
        return cls(
            candidates, price, model.pair_s, drafting, row_times, max_drafts, spare_s, attention_s
        )

    def best(self) -> list[int]:
        """The depths of the highest value."""
        if len(self.candidates) == 1:
            return [self._best_of_one(self.candidates[0])]
        return self._best_of_many()

    def _best_of_many(self) -> list[int]:
        positions = sorted(self._positions(), key=lambda p: (-p.worth, p.level))
        depths = [0] * len(self.candidates)
        best_value, best_level, best_count = 0.0, 0, 0
        levels = [max((p.level for p in positions), default=0)]
        if self.drafting.pass_s > 0:
            levels = list(range(1, levels[0] + 1))
        for level in levels:
            opened = [p for p in positions if p.level <= level]
            value, count = self._best_prefix(opened, level)
            if value > best_value:
                best_value, best_level, best_count = value, level, count
        for position in [p for p in positions if p.level <= best_level][:best_count]:
            depths[position.candidate_idx] += 1
        return depths

    def _best_of_one(self, candidate: Candidate) -> int:
        """The same for one request: each of its positions is a level of its own."""
        row_times, price, drafting = self.row_times, self.price, self.drafting
        position_cost = price * (self.pair_s * candidate.num_tokens + drafting.pass_s)
        gained, best_value, best_depth = -price * drafting.start_s, 0.0, 0
        for depth, survival in enumerate(candidate.survivals, start=1):
            most = self.max_drafts
            if self.spare_s < math.inf:
                most = self._most_drafts(depth)
            if depth > most or survival < LEAST_SURVIVAL:
                break
            gained += survival - position_cost
            value = gained - price * (row_times[depth] - row_times[0])
            if value > best_value:
                best_value, best_depth = value, depth
        return best_depth

    def value(self, depths: Sequence[int]) -> float:
        """Expected tokens of the drafts minus the price of their time."""
        num_drafts = sum(depths)
        if num_drafts == 0:
            return 0.0
        reads = sum(
            candidate.num_tokens * depth
            for candidate, depth in zip(self.candidates, depths, strict=True)
        )
        seconds = _extra_s(self.row_times, num_drafts, 0.0) + self.pair_s * reads
        seconds += self.drafting.seconds(max(depths))
        return self.expected_drafts(depths) - self.price * seconds

    def expected_drafts(self, depths: Sequence[int]) -> float:
        """How many of the drafts are expected to be right."""
        return sum(
            sum(candidate.survivals[:depth])
            for candidate, depth in zip(self.candidates, depths, strict=True)
        )

    def admits(self, depths: Sequence[int]) -> bool:
        return sum(depths) <= self._most_drafts(max(depths))

    def _most_drafts(self, level: int) -> int:
        """What fits into a step, and beside drafting `level` deep into the time it may take."""
        count, left_s = self.max_drafts, self.spare_s - self.drafting.seconds(level)
        while count and _extra_s(self.row_times, count, self.attention_s) > left_s:
            count -= 1
        return count

    def _positions(self) -> list[_Position]:
        return [
            _Position(survival - self.price * self.pair_s * candidate.num_tokens, level, idx)
            for idx, candidate in enumerate(self.candidates)
            for level, survival in enumerate(candidate.survivals, start=1)
            if survival >= LEAST_SURVIVAL
        ]

    def _best_prefix(self, positions: Sequence[_Position], level: int) -> tuple[float, int]:
        """The best value among the first k of `positions`, and that k."""
        gained = -self.price * self.drafting.seconds(level)
        best_value, best_count = 0.0, 0
        most = self._most_drafts(level)
        for count, position in enumerate(positions[:most], start=1):
            gained += position.worth
            value = gained - self.price * (self.row_times[count] - self.row_times[0])
            if value > best_value:
                best_value, best_count = value, count
        return best_value, best_count


def _extra_s(row_times: Sequence[float], num_drafts: int, attention_s: float) -> float:
    """Seconds that so many drafts add; `attention_s` of it each for reading the context."""
    return row_times[num_drafts] - row_times[0] + attention_s * num_drafts


def _decoding(num_tokens: Sequence[int], beside: StepShape) -> StepShape:
    """`beside` and one token of each request of these lengths."""
    count, total = len(num_tokens), sum(num_tokens)
    return StepShape(
        beside.num_tokens + count,
        beside.num_logit_rows + count,
        beside.kv_tokens_read + total,
        beside.query_key_pairs + total,
        beside.num_requests + count,
    )
