"""A program bound to its weights: runs the body over T rows and the head in slices of L rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from hasten.kernels.program import Rows
from hasten.kernels.step import StepResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from hasten.kernels.program import Program
    from hasten.kernels.reference.binding import Activation, Binder, Kernel
    from hasten.kernels.step import StepBatch

Scalar = TypeVar("Scalar", bound=np.generic)


class ReferenceExecutable:
    """Calls the kernels in order. Made by `ReferenceBackend.compile`."""

    def __init__(
        self, program: Program, binder: Binder, body: Sequence[Kernel], head: Sequence[Kernel]
    ) -> None:
        self._binder = binder
        self._body = tuple(body)
        self._head = tuple(head)
        self._token_buffers = self._activations(program, Rows.TOKENS)
        self._logit_buffers = self._activations(program, Rows.LOGITS)
        self._per_step = tuple(binder.per_step_values.values())
        self._taps = {name: binder.activation(buffer) for name, buffer in program.taps.items()}
        self._inputs = {name: binder.activation(buffer) for name, buffer in program.inputs.items()}

    def run(self, batch: StepBatch) -> StepResult:
        """Compute one step. Raises ValueError when the batch exceeds the capacity compiled for,
        and FloatingPointError when a row's logits hold NaN or forbid every token.
        """
        self._check(batch)
        self._binder.results.clear()
        with torch.inference_mode():
            self._binder.kv_cache.copy_blocks(batch)
            for value in self._per_step:
                value.refresh(batch)
            self._run_body(batch.num_tokens)
            self._run_head(batch.num_logit_rows)
        return join_slices(self._binder.results)

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """See `kernels.backend.Executable`."""
        rows: npt.NDArray[np.float32] = self._taps[name].rows.float().cpu().numpy()
        return rows

    def set_input(self, name: str, rows: npt.NDArray[np.float32]) -> None:
        """See `kernels.backend.Executable`."""
        with torch.inference_mode():
            self._inputs[name].data[: len(rows)] = torch.from_numpy(rows)

    def _run_body(self, num_tokens: int) -> None:
        for buffer in self._token_buffers:
            buffer.set_num_rows(num_tokens)
        for kernel in self._body:
            kernel()

    def _run_head(self, num_logit_rows: int) -> None:
        wanted = self._binder.logit_slice
        for start in range(0, num_logit_rows, self._binder.capacity.max_logit_rows):
            wanted.start = start
            wanted.stop = min(start + self._binder.capacity.max_logit_rows, num_logit_rows)
            for buffer in self._logit_buffers:
                buffer.set_num_rows(wanted.stop - wanted.start)
            for kernel in self._head:
                kernel()

    def _activations(self, program: Program, rows: Rows) -> tuple[Activation, ...]:
        return tuple(
            self._binder.activation(buffer) for buffer in program.buffers if buffer.rows is rows
        )

    def _check(self, batch: StepBatch) -> None:
        capacity = self._binder.capacity
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
