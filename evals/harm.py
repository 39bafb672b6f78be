"""What a measure says about the candidate, oriented so that more is worse.

Every measure of the gate becomes one of these: a number with one-sided bounds, a test against a
limit, and an answer to "how many samples would decide it?". Exercised by
`pytest tests/unit/evals/test_gate.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from hasten.evals import statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

SEED = 20240917
"""Resampling is part of the measure: the same observations give the same bounds."""

MIN_CLUSTERS = 8
"""Below this many clusters a bootstrap interval is fiction; the gate does not decide on it."""


class Harm(Protocol):
    """A measured harm."""

    @property
    def sample(self) -> str:
        """What one sample is, in the plural: "windows", "tokens", "items"."""
        ...

    @property
    def estimate(self) -> float: ...

    @property
    def num_samples(self) -> int: ...

    def bound(self, level: float) -> float:
        """The true harm is below this with confidence `level` (one-sided)."""
        ...

    def p_exceeds(self, limit: float) -> float:
        """The p-value of "the true harm is at most `limit`"."""
        ...

    def samples_to_decide(self, limit: float, alpha: float, power: float) -> int | None:
        """Samples that would decide against `limit` if the truth is what was seen; None: never."""
        ...

    def detectable(self, limit: float, alpha: float, power: float) -> float:
        """The smallest harm that this many samples show to exceed `limit` with this power."""
        ...


@dataclass(frozen=True, slots=True)
class BootstrapHarm:
    """A statistic of clustered values."""

    bootstrap: statistics.Bootstrap
    num_samples: int
    sample: str = "windows"

    @classmethod
    def mean(cls, clusters: Sequence[npt.ArrayLike], sample: str = "windows") -> BootstrapHarm:
        return cls(statistics.bootstrap_mean(clusters, SEED), len(clusters), sample)

    @classmethod
    def exp_mean(cls, clusters: Sequence[npt.ArrayLike], sample: str = "windows") -> BootstrapHarm:
        return cls(statistics.bootstrap_mean(clusters, SEED, np.exp), len(clusters), sample)

    @classmethod
    def quantile(
        cls, clusters: Sequence[npt.ArrayLike], q: float, sample: str = "windows"
    ) -> BootstrapHarm:
        return cls(statistics.bootstrap_quantile(clusters, q, SEED), len(clusters), sample)

    @property
    def estimate(self) -> float:
        return self.bootstrap.estimate

    def bound(self, level: float) -> float:
        if self.num_samples < MIN_CLUSTERS:
            return math.inf if level >= 0.5 else -math.inf
        return self.bootstrap.bound(level)

    def p_exceeds(self, limit: float) -> float:
        return 1.0 if self.num_samples < MIN_CLUSTERS else self.bootstrap.p_exceeds(limit)

    def samples_to_decide(self, limit: float, alpha: float, power: float) -> int | None:
        gap = limit - self.estimate
        if gap == 0.0:
            return None
        error = self.bootstrap.standard_error
        needed = statistics.samples_for_gap(self.num_samples, error, gap, alpha, power)
        return max(needed, MIN_CLUSTERS)

    def detectable(self, limit: float, alpha: float, power: float) -> float:
        return limit + statistics.z_sum(alpha, power) * self.bootstrap.standard_error


@dataclass(frozen=True, slots=True)
class RateHarm:
    """So many bad ones among independent ones; exact."""

    num_bad: int
    num_samples: int
    sample: str = "tokens"

    @property
    def estimate(self) -> float:
        return self.num_bad / self.num_samples

    def bound(self, level: float) -> float:
        return statistics.rate_bound(self.num_bad, self.num_samples, level)

    def p_exceeds(self, limit: float) -> float:
        return statistics.rate_p_exceeds(self.num_bad, self.num_samples, limit)

    def samples_to_decide(self, limit: float, alpha: float, power: float) -> int | None:
        clean = statistics.samples_for_clean_rate(limit, alpha)
        if self.num_bad == 0:
            return clean
        rate = self.estimate
        if rate == limit:
            return None
        error = math.sqrt(rate * (1.0 - rate) / self.num_samples)
        gap = limit - rate
        return max(clean, statistics.samples_for_gap(self.num_samples, error, gap, alpha, power))

    def detectable(self, limit: float, alpha: float, power: float) -> float:
        return statistics.detectable_rate(self.num_samples, limit, alpha, power)


@dataclass(frozen=True, slots=True)
class NoneAllowed:
    """A promise that one counterexample breaks: no statistics, but a number of tries to report."""

    num_bad: int
    num_samples: int
    sample: str = "comparisons"

    @property
    def estimate(self) -> float:
        return float(self.num_bad)

    def bound(self, level: float) -> float:  # noqa: ARG002 - certain at every level
        return float(self.num_bad)

    def p_exceeds(self, limit: float) -> float:
        return 0.0 if self.num_bad > limit else 1.0

    def samples_to_decide(self, *_levels: float) -> int | None:
        return self.num_samples

    def detectable(self, limit: float, alpha: float, power: float) -> float:  # noqa: ARG002 - power alone matters
        """Here a share of the comparisons, not a count: one that shows up with this power."""
        return -math.expm1(math.log1p(-power) / self.num_samples)


@dataclass(frozen=True, slots=True)
class Certain:
    """A number that is counted, not sampled: it is within the limit or it is not."""

    estimate: float
    num_samples: int = 1
    sample: str = "counts"

    def bound(self, level: float) -> float:  # noqa: ARG002 - certain at every level
        return self.estimate

    def p_exceeds(self, limit: float) -> float:
        return 0.0 if self.estimate > limit else 1.0

    def samples_to_decide(self, *_levels: float) -> int | None:
        return self.num_samples

    def detectable(self, limit: float, alpha: float, power: float) -> float:  # noqa: ARG002 - any excess shows
        return limit


@dataclass(frozen=True, slots=True)
class PairedLoss:
    """The fall in accuracy on the same items, as a share (0.02 is two points)."""

    lost: int  # items that only the baseline gets right
    won: int  # items that only the candidate gets right
    num_samples: int
    sample: str = field(default="items")

    @classmethod
    def of(cls, baseline: Sequence[bool], candidate: Sequence[bool]) -> PairedLoss:
        pairs = list(zip(baseline, candidate, strict=True))
        lost = sum(base and not cand for base, cand in pairs)
        won = sum(cand and not base for base, cand in pairs)
        return cls(lost, won, len(pairs))

    @property
    def estimate(self) -> float:
        return (self.lost - self.won) / self.num_samples

    def bound(self, level: float) -> float:
        return statistics.paired_loss_bound(self.lost, self.won, self.num_samples, level)

    def p_exceeds(self, limit: float) -> float:
        return statistics.paired_loss_p_exceeds(self.lost, self.won, self.num_samples, limit)

    def samples_to_decide(self, limit: float, alpha: float, power: float) -> int | None:
        gap = limit - self.estimate
        if gap == 0.0:
            return None
        return statistics.samples_for_gap(
            self.num_samples, self._standard_error(), gap, alpha, power
        )

    def detectable(self, limit: float, alpha: float, power: float) -> float:
        return limit + statistics.z_sum(alpha, power) * self._standard_error()

    def _standard_error(self) -> float:
        """Of the loss; half an item is added to each kind, so that none seen is not none there."""
        lost, won = self.lost + 0.5, self.won + 0.5
        num = self.num_samples + 1.0
        return math.sqrt(lost + won - (lost - won) ** 2 / num) / num
