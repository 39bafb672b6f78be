"""A program bound to its weights: runs the body over T rows and the head in slices of L rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hasten.kernels.program import Rows
from hasten.kernels.slices import check_size, join_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from hasten.kernels.program import Program
    from hasten.kernels.reference.binding import Activation, Binder, Kernel
    from hasten.kernels.step import StepBatch, StepResult


class ReferenceExecutable:
    """Calls the kernels in order. Made by `ReferenceBackend.compile`."""

    def __init__(
        self, program: Program, binder: Binder, body: Sequence[Kernel], head: Sequence[Kernel]
    ) -> None:
        self._binder = binder
        self._body = tuple(body)
        self._head = tuple(head)
        self._token_buffers = binder.activations_of(program, Rows.TOKENS)
        self._logit_buffers = binder.activations_of(program, Rows.LOGITS)
        self._per_step = tuple(binder.per_step_values.values())
        self._taps = {name: binder.activation(buffer) for name, buffer in program.taps.items()}
        self._inputs = {name: binder.activation(buffer) for name, buffer in program.inputs.items()}

    def run(self, batch: StepBatch) -> StepResult:
        """Compute one step. Raises ValueError when the batch exceeds the capacity compiled for,
        and FloatingPointError when a row's logits hold NaN or forbid every token.
        """
        binder = self._binder
        check_size(batch, binder.capacity)
        binder.results.clear()
        with torch.inference_mode():
            binder.kv_cache.copy_blocks(batch)
            for value in self._per_step:
                value.refresh(batch)
            _run(self._body, self._token_buffers, batch.num_tokens)
            binder.logit_slice.walk(
                batch.num_logit_rows, binder.capacity.max_logit_rows, self._run_head_slice
            )
        return join_slices(binder.results)

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """See `kernels.backend.Executable`."""
        rows: npt.NDArray[np.float32] = self._taps[name].rows.float().cpu().numpy()
        return rows

    def set_input(self, name: str, rows: npt.NDArray[np.float32]) -> None:
        """See `kernels.backend.Executable`."""
        with torch.inference_mode():
            self._inputs[name].data[: len(rows)] = torch.from_numpy(rows)

    def _run_head_slice(self) -> None:
        _run(self._head, self._logit_buffers, self._binder.logit_slice.num_rows)


def _run(kernels: Sequence[Kernel], buffers: Sequence[Activation], num_rows: int) -> None:
    for buffer in buffers:
        buffer.set_num_rows(num_rows)
    for kernel in kernels:
        kernel()
