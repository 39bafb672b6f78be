"""Step-time models made by hand: seconds by number of rows, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from hasten.core.latency import StepTimeModel
from hasten.spec.depth import DepthController, StepLimits


def model_of(seconds: Callable[[int], float], num_rows: int) -> StepTimeModel:
    """A model whose step of r rows takes `seconds(r)`."""
    model = StepTimeModel()
    for count in range(1, num_rows + 1):
        model.body.set(count, seconds(count))
    return model


def controller_of(
    seconds: Callable[[int], float], max_rows: int = 300, target_s: float | None = None
) -> DepthController:
    return DepthController(model_of(seconds, max_rows), StepLimits(max_rows, target_s))


def flat(rows: int) -> float:
    return 0.002


def linear(rows: int) -> float:
    """A tenth of a decoding step for each further row."""
    return 0.001 + 0.0001 * rows


def cliff(rows: int) -> float:
    """Twice as long from the ninth row on."""
    return 0.002 if rows <= 8 else 0.004
