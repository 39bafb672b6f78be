"""Latencies of the last minute, for the live view: percentiles that forget.

Histograms of Prometheus sum up all that ever was. Reads no clock. Exercised by
`pytest tests/unit/api/test_observability.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
MAX_SAMPLES = 4096
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    seconds: float


class RecentLatency:
    """One kind of latency; at most `MAX_SAMPLES` are kept."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=MAX_SAMPLES)

    def note(self, at_s: float, seconds: float) -> None:
        self._samples.append(_Sample(at_s, seconds))

    def quantiles(self, now_s: float) -> dict[str, float | None]:
        """By name, in seconds; None while there was nothing."""
        while self._samples and self._samples[0].at_s < now_s - WINDOW_S:
            self._samples.popleft()
        ordered = sorted(sample.seconds for sample in self._samples)
        last = len(ordered) - 1
        return {
            name: ordered[round(share * last)] if ordered else None
            for name, share in QUANTILES.items()
        }
