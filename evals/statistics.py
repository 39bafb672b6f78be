"""The arithmetic of the gate: intervals, exact tests, corrections and sample sizes.

Pure functions on numbers; nothing here knows models. Everything is one-sided, because the gate
asks one question: is the harm at most this much?

Terms: a *cluster* is what was drawn independently (a window of text, a prompt); the tokens inside
one are not independent, so clusters, never tokens, are resampled. `alpha` is the error rate of
one one-sided statement. Exercised by `pytest tests/unit/evals/test_statistics.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F64 = npt.NDArray[np.float64]

NUM_REPLICATES = 4000
"""Enough that a p-value of 1 / 4000 survives Holm's correction over a few dozen measures."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A statistic and its bootstrap distribution, read with BCa correction.

    Source: Efron, Better Bootstrap Confidence Intervals (1987).
    """

    estimate: float
    replicates: F64  # sorted, [num_replicates]
    bias: float  # z0
    acceleration: float

    def bound(self, level: float) -> float:
        """The value below which the true statistic lies with confidence `level`."""
        z = self.bias + float(stats.norm.ppf(level))
        corrected = self.bias + z / (1.0 - self.acceleration * z)
        return float(np.quantile(self.replicates, stats.norm.cdf(corrected)))

    def p_exceeds(self, limit: float) -> float:
        """The p-value of "the true statistic is at most `limit`": `bound` solved for its level."""
        below = float(np.mean(self.replicates < limit) + np.mean(self.replicates <= limit)) / 2
        floor = 1.0 / (len(self.replicates) + 1)
        z = float(stats.norm.ppf(min(max(below, floor), 1.0 - floor))) - self.bias
        corrected = z / (1.0 + self.acceleration * z) - self.bias
        return max(float(stats.norm.cdf(corrected)), floor)

    @property
    def standard_error(self) -> float:
        return float(np.std(self.replicates))


def _bootstrap(estimate: float, replicates: F64, leave_one_out: F64 | None) -> Bootstrap:
    below = float(np.mean(replicates < estimate) + np.mean(replicates <= estimate)) / 2
    floor = 1.0 / (len(replicates) + 1)
    bias = float(stats.norm.ppf(min(max(below, floor), 1.0 - floor)))
    acceleration = 0.0 if leave_one_out is None else _acceleration(leave_one_out)
    return Bootstrap(estimate, np.sort(replicates), bias, acceleration)


def _acceleration(leave_one_out: F64) -> float:
    deviation = leave_one_out.mean() - leave_one_out
    spread = float(np.sum(deviation**2)) ** 1.5
    return float(np.sum(deviation**3)) / (6.0 * spread) if spread > 0.0 else 0.0


@lru_cache(maxsize=16)
def resample(num_clusters: int, seed: int, num_replicates: int = NUM_REPLICATES) -> F64:
    """How often each cluster is drawn in each replicate, [num_replicates, num_clusters].

    Read-only, since all measures with as many clusters share it.
    """
    shares = np.full(num_clusters, 1.0 / num_clusters)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(num_clusters, shares, size=num_replicates).astype(np.float64)
    counts.flags.writeable = False
    return counts


def bootstrap_mean(
    clusters: Sequence[npt.ArrayLike],
    seed: int,
    transform: Callable[[Any], Any] | None = None,
) -> Bootstrap:
    """The mean over all values of all clusters (each value weighs the same), by cluster.

    `transform` (increasing, elementwise) is applied to the mean; BCa respects it.
    """
    change: Callable[[Any], Any] = transform or (lambda mean: mean)
    sums = np.array([np.sum(np.asarray(cluster, np.float64)) for cluster in clusters])
    sizes = np.array([np.size(cluster) for cluster in clusters], np.float64)
    counts = resample(len(sums), seed)
    replicates = change((counts @ sums) / (counts @ sizes))
    jackknife = None
    if len(sums) > 1:
        jackknife = change((sums.sum() - sums) / (sizes.sum() - sizes))
    return _bootstrap(float(change(sums.sum() / sizes.sum())), replicates, jackknife)


def bootstrap_quantile(clusters: Sequence[npt.ArrayLike], q: float, seed: int) -> Bootstrap:
    """The q-quantile of all values, by cluster; bias-corrected only.

    The jackknife of a quantile is inconsistent, so there is no acceleration term.
    """
    values = np.concatenate([np.asarray(cluster, np.float64) for cluster in clusters])
    owner = np.repeat(np.arange(len(clusters)), [np.size(cluster) for cluster in clusters])
    order = np.argsort(values, kind="stable")
    values, owner = values[order], owner[order]
    estimate = float(values[_quantile_index(np.ones((1, len(values))), q)[0]])
    counts = resample(len(clusters), seed)
    replicates = np.concatenate(
        [values[_quantile_index(part[:, owner], q)] for part in np.array_split(counts, 40)]
    )
    return _bootstrap(estimate, replicates, None)


def _quantile_index(weights: F64, q: float) -> npt.NDArray[np.intp]:
    """Per row of weights over sorted values, the first index whose share below reaches q."""
    cumulative = np.cumsum(weights, axis=1)
    reached: npt.NDArray[np.bool_] = cumulative >= q * cumulative[:, -1:] - 1e-9
    return np.asarray(np.argmax(reached, axis=1), np.intp)


# Rates


def rate_bound(num_bad: int, num: int, level: float) -> float:
    """Clopper and Pearson's exact bound: the rate is below it with confidence `level`."""
    if level >= 0.5:
        return 1.0 if num_bad == num else float(stats.beta.ppf(level, num_bad + 1, num - num_bad))
    return 0.0 if num_bad == 0 else float(stats.beta.ppf(level, num_bad, num - num_bad + 1))


def rate_p_exceeds(num_bad: int, num: int, limit: float) -> float:
    """The exact p-value of "the rate is at most `limit`"."""
    return float(stats.binom.sf(num_bad - 1, num, limit))


# Paired proportions: `lost` items only the baseline gets right, `won` items only the candidate


def mcnemar(lost: int, won: int) -> float:
    """The exact two-sided p-value of "both get equally many right" (McNemar, 1947)."""
    if lost + won == 0:
        return 1.0
    return float(stats.binomtest(lost, lost + won, 0.5).pvalue)


def paired_score(lost: int, won: int, num: int, loss: float) -> float:
    """The score statistic of "accuracy falls by `loss`" (Tango, 1998); large: it falls more."""
    a = 2.0 * num
    b = -lost - won + (2.0 * num - lost + won) * loss
    c = -won * loss * (1.0 - loss)
    nuisance = (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
    variance = num * (2.0 * nuisance + loss * (1.0 - loss))
    excess = lost - won - num * loss
    if variance <= 0.0:
        return 0.0 if excess == 0.0 else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def paired_loss_bound(lost: int, won: int, num: int, level: float) -> float:
    """The loss of accuracy is below this with confidence `level` (Tango's score interval)."""
    z = float(stats.norm.ppf(level))

    def crossing(loss: float) -> float:
        return paired_score(lost, won, num, loss) + z

    edge = 1.0 - 1e-9
    if crossing(-edge) <= 0.0:
        return -1.0
    if crossing(edge) >= 0.0:
        return 1.0
    return float(optimize.brentq(crossing, -edge, edge, xtol=1e-9))


def paired_loss_p_exceeds(lost: int, won: int, num: int, limit: float) -> float:
    """The p-value of "the loss of accuracy is at most `limit`"."""
    return float(stats.norm.sf(paired_score(lost, won, num, limit)))


# Many measures at once, and how many samples they need


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979): the family-wise error stays below alpha."""
    order = np.argsort(p_values, kind="stable")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def z_sum(alpha: float, power: float) -> float:
    """Standard errors between two means told apart at level `alpha` with this power."""
    return float(stats.norm.ppf(1.0 - alpha) + stats.norm.ppf(power))


def samples_for_gap(num: int, standard_error: float, gap: float, alpha: float, power: float) -> int:
    """Samples needed to tell an estimate from a limit `gap` away, from `num` samples' error."""
    if standard_error == 0.0:
        return num
    if gap == 0.0:
        raise ValueError("the estimate lies on the limit: no number of samples tells them apart")
    return math.ceil(num * (z_sum(alpha, power) * standard_error / gap) ** 2)


def samples_for_clean_rate(limit: float, alpha: float) -> int:
    """Samples without a single bad one that show a rate of at most `limit`."""
    return math.ceil(math.log(alpha) / math.log1p(-limit))


def detectable_rate(num: int, limit: float, alpha: float, power: float) -> float:
    """The smallest rate that `num` samples show to exceed `limit` with this power."""
    critical = int(stats.binom.isf(alpha, num, limit)) + 1
    if critical > num:
        return 1.0
    return float(stats.beta.ppf(power, critical, num - critical + 1))
