"""What executables of compiled programs share: the check of a step's size, and the head's slices.

Not here: how a backend runs ops. Exercised by `pytest tests/cpu/kernels tests/cpu/triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from hasten.kernels.step import StepResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from hasten.kernels.program import Capacity
    from hasten.kernels.step import StepBatch

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(slots=True)
class LogitSlice:
    """Which logit rows the head is computing: [start, stop) of the batch's L."""

    start: int = 0
    stop: int = 0

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    def walk(self, num_rows: int, most: int, run: Callable[[], None]) -> None:
        """Call `run` for each slice of at most `most` rows."""
        for start in range(0, num_rows, most):
            self.start, self.stop = start, min(start + most, num_rows)
            run()


def check_size(batch: StepBatch, capacity: Capacity) -> None:
    """Raise ValueError when the batch exceeds the capacity compiled for."""
    if batch.num_tokens > capacity.max_tokens:
        raise ValueError(f"{batch.num_tokens} tokens exceed the {capacity.max_tokens} compiled")
    if batch.num_requests > capacity.max_requests:
        raise ValueError(
            f"{batch.num_requests} requests exceed the {capacity.max_requests} compiled"
        )
    longest = int(batch.seq_lens.max(initial=0))
    if longest > capacity.max_model_len:
        raise ValueError(f"length {longest} exceeds the {capacity.max_model_len} compiled")


def join_slices(slices: Sequence[StepResult]) -> StepResult:
    """The results of the head's slices as one, padded to the most alternatives of any."""
    if len(slices) == 1:
        return slices[0]
    width = max((part.top_ids.shape[1] for part in slices), default=0)
    empty = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    return StepResult(
        token_ids=np.concatenate([empty[0], *(part.token_ids for part in slices)]),
        logprobs=np.concatenate([empty[1], *(part.logprobs for part in slices)]),
        top_ids=_stack([part.top_ids for part in slices], width, np.int32(-1)),
        top_logprobs=_stack([part.top_logprobs for part in slices], width, np.float32(np.nan)),
    )


def _stack(parts: Sequence[npt.NDArray[Scalar]], width: int, fill: Scalar) -> npt.NDArray[Scalar]:
    padded = [
        np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts
    ]
    return np.concatenate([np.zeros((0, width), dtype=fill.dtype), *padded])
