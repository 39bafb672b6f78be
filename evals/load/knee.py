"""Where to run a server: the knee of its throughput-against-latency curve.

With latency targets it is the fastest point that keeps them at the 99th percentile. Without, it is
the point farthest from the straight line between the ends of the curve, both axes scaled to 1
(Satopaa et al. 2011, "Finding a Kneedle in a Haystack"). Exercised by
`pytest tests/unit/load/test_sweep.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.evals.load.summary import LoadSummary
    from hasten.evals.load.sweep import SweepPoint


def knee(curve: Sequence[SweepPoint]) -> SweepPoint | None:
    """One point of one server's curve; None when no point keeps the targets."""
    targets = curve[0].summary.targets
    if any((targets.ttft_ms, targets.tpot_ms, targets.e2e_ms)):
        good = [point for point in curve if _keeps_targets(point.summary)]
        return max(good, key=lambda point: point.summary.output_tokens_per_s, default=None)
    return _bend(curve)


def _keeps_targets(summary: LoadSummary) -> bool:
    targets = summary.targets
    limits = (
        (targets.ttft_ms, summary.ttft_ms.p99),
        (targets.tpot_ms, summary.tpot_ms.p99),
        (targets.e2e_ms, summary.e2e_ms.p99),
    )
    kept = all(limit is None or value <= limit for limit, value in limits)
    return kept and summary.num_failed == 0


def _bend(curve: Sequence[SweepPoint]) -> SweepPoint:
    ordered = sorted(curve, key=lambda point: point.summary.output_tokens_per_s)
    throughput = _scaled([point.summary.output_tokens_per_s for point in ordered])
    latency = _scaled([point.summary.itl_ms.p99 for point in ordered])
    above = [x - y for x, y in zip(throughput, latency, strict=True)]
    return ordered[above.index(max(above))]


def _scaled(values: Sequence[float]) -> list[float]:
    """From 0 to 1; zeros where all are equal."""
    low, width = min(values), max(values) - min(values)
    return [(value - low) / (width or 1.0) for value in values]
