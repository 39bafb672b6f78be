"""The gate: measured harms against their limits, one verdict.

A limit is the most harm that the suite's owner accepts. Per measure:

    pass       the upper confidence bound is at most the limit (non-inferiority)
    fail       the harm exceeds the limit, also after Holm's correction over all measures
    undecided  neither; the judgement says how many samples would decide
    missing    it could not be measured; never a pass

The whole passes only if every measure passes. Each of these tests has level alpha, and so has
their conjunction (an intersection-union test): demanding all needs no correction. Failing on any
one does, hence Holm there. Exercised by `pytest tests/unit/evals/test_gate.py`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from hasten.evals.statistics import holm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.harm import Harm


class Verdict(enum.StrEnum):
    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    UNDECIDED = "undecided"
    MISSING = "missing"
    INFORMATION = "information"

    @property
    def exit_code(self) -> int:
        return {Verdict.PASS: 0, Verdict.FAIL: 1}.get(self, 2)


@dataclass(frozen=True, slots=True)
class Measure:
    """A harm with its name ("prose.kl_mean"), unit, and limit (None: reported, not judged).

    `harm` is None where it could not be measured; `note` then says why. Otherwise the note is
    what a reader must know about the number, such as that it is a lower bound.
    """

    name: str
    unit: str
    harm: Harm | None
    limit: float | None = None
    note: str = ""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One measure, judged. Bounds are one-sided at the suite's alpha."""

    name: str
    unit: str
    verdict: Verdict
    note: str
    limit: float | None = None
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    num_samples: int = 0
    sample: str = ""
    p_fail: float | None = None
    detectable: float | None = None
    more_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """Levels of the tests; see the module's text."""

    alpha: float = 0.05
    power: float = 0.9

    def judge(self, measures: Sequence[Measure]) -> list[Judgement]:
        """Judge each measure, in order."""
        p_fail = self._adjusted_p_values(measures)
        return [self._judge_one(measure, p_fail.get(measure.name)) for measure in measures]

    def _adjusted_p_values(self, measures: Sequence[Measure]) -> dict[str, float]:
        names, p_values = [], []
        for measure in measures:
            if measure.harm is not None and measure.limit is not None:
                names.append(measure.name)
                p_values.append(measure.harm.p_exceeds(measure.limit))
        return dict(zip(names, holm(p_values), strict=True))

    def _judge_one(self, measure: Measure, p_fail: float | None) -> Judgement:
        harm, limit = measure.harm, measure.limit
        if harm is None:
            verdict = Verdict.INFORMATION if limit is None else Verdict.MISSING
            return Judgement(
                name=measure.name,
                unit=measure.unit,
                verdict=verdict,
                note=measure.note,
                limit=limit,
            )
        verdict = self._verdict(harm, limit, p_fail)
        return Judgement(
            name=measure.name,
            unit=measure.unit,
            verdict=verdict,
            note=measure.note,
            limit=limit,
            estimate=harm.estimate,
            lower=_finite(harm.bound(self.alpha)),
            upper=_finite(harm.bound(1.0 - self.alpha)),
            num_samples=harm.num_samples,
            sample=harm.sample,
            p_fail=p_fail,
            detectable=None if limit is None else harm.detectable(limit, self.alpha, self.power),
            more_samples=self._more_samples(harm, limit) if verdict is Verdict.UNDECIDED else None,
        )

    def _verdict(self, harm: Harm, limit: float | None, p_fail: float | None) -> Verdict:
        if limit is None or p_fail is None:
            return Verdict.INFORMATION
        if p_fail <= self.alpha:
            return Verdict.FAIL
        return Verdict.PASS if harm.bound(1.0 - self.alpha) <= limit else Verdict.UNDECIDED

    def _more_samples(self, harm: Harm, limit: float | None) -> int | None:
        needed = None if limit is None else harm.samples_to_decide(limit, self.alpha, self.power)
        return None if needed is None else max(needed - harm.num_samples, 1)


def overall(judgements: Sequence[Judgement]) -> Verdict:
    """The verdict on the whole: fail beats undecided (and missing), both beat pass.

    Nothing judged is undecided: there is no evidence.
    """
    judged = [j.verdict for j in judgements if j.verdict is not Verdict.INFORMATION]
    if Verdict.FAIL in judged:
        return Verdict.FAIL
    if not judged or any(verdict is not Verdict.PASS for verdict in judged):
        return Verdict.UNDECIDED
    return Verdict.PASS


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
