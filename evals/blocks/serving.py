"""Latency at stated loads, both sides in turns: TTFT, time between tokens, tokens per second; and
how many drafts of speculation come true meanwhile.

Rounds alternate, so that a machine that slows down in the middle slows both. A round, not a token,
is what gets resampled: the tokens of one round share the machine's mood.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hasten.evals.blocks.limits import check_limits
from hasten.evals.gate import Measure
from hasten.evals.harm import BootstrapHarm
from hasten.evals.rows import PromptRow
from hasten.evals.target import CannotMeasureError, Drafts, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.evals.pair import Pair
    from hasten.evals.target import Target, Timing


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one side, summarised. Seconds; rates in tokens per second.

    `drafts` is None where the side does not count them.
    """

    concurrency: int
    ttft_s: float  # median over requests
    itl_s: float  # median over tokens
    itl_p99_s: float
    tokens_per_s: float
    drafts: Drafts | None = None

    @classmethod
    def of(cls, concurrency: int, timings: Sequence[Timing], drafts: Drafts | None = None) -> Round:
        gaps = np.concatenate([timing.gaps_s for timing in timings])
        end_s = max(timing.sent_s + timing.arrivals_s[-1] for timing in timings)
        num_tokens = sum(len(timing.arrivals_s) for timing in timings)
        return cls(
            concurrency=concurrency,
            ttft_s=float(np.median([timing.ttft_s for timing in timings])),
            itl_s=float(np.median(gaps)),
            itl_p99_s=float(np.quantile(gaps, 0.99)),
            tokens_per_s=num_tokens / end_s,
            drafts=drafts,
        )


class ServingResult(msgspec.Struct, frozen=True, tag="serving"):
    baseline: list[Round]
    candidate: list[Round]


_TIMES: dict[str, Callable[[Round], float]] = {
    "ttft": lambda one: one.ttft_s,
    "itl": lambda one: one.itl_s,
    "itl_p99": lambda one: one.itl_p99_s,
    "time_per_token": lambda one: 1.0 / one.tokens_per_s,
}
_MEASURES = (*(f"{name}_ratio" for name in _TIMES), "acceptance_loss")


class ServingBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="serving",
    forbid_unknown_fields=True,
):
    """`num_rounds` rounds at each concurrency, of two prompts per place; ratios above 1 are slower.

    Every measure exists for each concurrency: the limits "itl_ratio" hold at all of them.
    """

    name: str
    source: str = "hasten:prompts.jsonl"
    concurrency: list[int]
    num_rounds: int
    max_tokens: int
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, _MEASURES)
        if self.max_tokens < 2:
            raise ValueError(f"{self.name}: the time between tokens needs at least two of them")

    def observe(self, pair: Pair) -> ServingResult:
        rows = pair.data.rows(self.source, PromptRow)
        result = ServingResult([], [])
        sides = ((pair.baseline, result.baseline), (pair.candidate, result.candidate))
        todo = [level for level in self.concurrency for _ in range(self.num_rounds)]
        for done, level in enumerate(todo):
            pair.progress.advance(done, len(todo))
            # Who goes first alternates too.
            for target, rounds in sides if done % 2 == 0 else reversed(sides):
                prompts = self._prompts(target, rows, 2 * level)
                before = _drafts(target)
                timings = target.time_load(prompts, level)
                after = _drafts(target)
                drafts = None if before is None or after is None else after.since(before)
                rounds.append(Round.of(level, timings, drafts))
        return result

    def measures(self, result: ServingResult) -> list[Measure]:
        measures: list[Measure] = []
        for level in self.concurrency:
            base, cand = (
                [one for one in side if one.concurrency == level]
                for side in (result.baseline, result.candidate)
            )
            measures.extend(self._ratio(name, level, base, cand) for name in _TIMES)
            measures.extend(self._acceptance(level, base, cand))
        return measures

    def _ratio(self, time: str, level: int, base: list[Round], cand: list[Round]) -> Measure:
        seconds = [[_TIMES[time](one) for one in side] for side in (base, cand)]
        logs = [[np.log(c / b)] for b, c in zip(*seconds, strict=True)]
        medians = " and ".join(f"{1000 * np.median(side):.3g} ms" for side in seconds)
        name = f"{time}_ratio"
        return Measure(
            f"{self.name}.{name}@{level}",
            "ratio",
            BootstrapHarm.exp_mean(logs, "rounds"),
            self.limits.get(name),
            medians,
        )

    def _acceptance(self, level: int, base: list[Round], cand: list[Round]) -> list[Measure]:
        """The fall in the share of drafts that come true; only where both sides draft."""
        limit = self.limits.get("acceptance_loss")
        name = f"{self.name}.acceptance_loss@{level}"
        shares = [[_acceptance(one) for one in side] for side in (base, cand)]
        pairs = [(b, c) for b, c in zip(*shares, strict=True) if b is not None and c is not None]
        if not pairs:
            missing = Measure(name, "share", None, limit, "no drafts are counted on both sides")
            return [] if limit is None else [missing]
        harm = BootstrapHarm.mean([[b - c] for b, c in pairs], "rounds")
        means = " and ".join(f"{np.mean(side):.1%}" for side in zip(*pairs, strict=True))
        return [Measure(name, "share", harm, limit, f"{means} of the drafts accepted")]

    def _prompts(self, target: Target, rows: Sequence[PromptRow], num: int) -> list[Prompt]:
        return [
            Prompt(target.render(rows[i % len(rows)].messages), self.max_tokens, ignore_eos=True)
            for i in range(num)
        ]


def _drafts(target: Target) -> Drafts | None:
    try:
        return target.drafts()
    except CannotMeasureError:
        return None


def _acceptance(one: Round) -> float | None:
    """The share of a round's drafts that were accepted; None without drafts."""
    drafts = one.drafts
    return drafts.num_accepted / drafts.num_drafted if drafts and drafts.num_drafted else None
