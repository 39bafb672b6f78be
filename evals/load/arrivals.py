"""When requests arrive, in seconds from the start of a run.

Open loop: requests come whether or not earlier ones were answered, which is what users do. The
closed loop (a fixed number of clients, each asking again once answered) has no arrival times and
lives in `run`. Pure: seeds are arguments. Exercised by `pytest tests/unit/load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True, slots=True)
class Ramp:
    """The request rate goes linearly from `start` to `end` requests per second over the run."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if min(self.start, self.end) <= 0:
            raise ValueError(f"rates must be positive, got {self.start} to {self.end}")


def poisson(rate: float, count: int, seed: int, burstiness: float = 1.0) -> list[float]:
    """`count` arrival times at `rate` per second.

    Gaps follow a gamma distribution of mean 1 / rate and shape 1 / burstiness: 1 is a Poisson
    process, more is burstier (the variance of a gap is burstiness / rate^2), 0 is a metronome.
    """
    return ramped(Ramp(rate, rate), count, seed, burstiness)


def ramped(ramp: Ramp, count: int, seed: int, burstiness: float = 1.0) -> list[float]:
    """`count` arrival times while the rate changes linearly with the number of arrivals."""
    if burstiness < 0:
        raise ValueError(f"burstiness must not be negative, got {burstiness}")
    rates = np.linspace(ramp.start, ramp.end, count)
    if burstiness == 0:
        gaps = np.ones(count)
    else:
        rng = np.random.default_rng(seed)
        gaps = rng.gamma(shape=1 / burstiness, scale=burstiness, size=count)
    return list(accumulate((gaps / rates).tolist()))


def rescaled(times: Sequence[float], speed: float) -> list[float]:
    """A trace's times from zero, `speed` times as fast."""
    if speed <= 0:
        raise ValueError(f"speed must be positive, got {speed}")
    start = min(times, default=0.0)
    return [(time - start) / speed for time in times]
