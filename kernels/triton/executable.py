"""A program bound to its weights: uploads the step, runs the body, then the head in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hasten.kernels.program import Rows
from hasten.kernels.slices import check_size, join_slices
from hasten.kernels.triton.graphs import BodyGraphs, padded_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from hasten.kernels.backend import BoundBytes
    from hasten.kernels.program import Program
    from hasten.kernels.step import StepBatch, StepResult
    from hasten.kernels.triton.binding import Activation, Binder, Kernel


class TritonExecutable:
    """Launches the kernels in order, those of the body as graphs where it may. Made by
    `TritonBackend.compile`.
    """

    def __init__(
        self,
        program: Program,
        binder: Binder,
        body: Sequence[Kernel],
        head: Sequence[Kernel],
        *,
        captures: bool,
    ) -> None:
        self._binder = binder
        self._body = tuple(body)
        self._head = tuple(head)
        self._token_buffers = binder.activations_of(program, Rows.TOKENS)
        self._logit_buffers = binder.activations_of(program, Rows.LOGITS)
        self._step_inputs = tuple(binder.inputs.values())
        self._inputs = {name: binder.activation(buffer) for name, buffer in program.inputs.items()}
        self._taps = {
            name: (made.rows, binder.activation(made)) for name, made in program.taps.items()
        }
        self._graphs = BodyGraphs(binder.machine, self.run_body) if captures else None
        self._num_tokens = 0

    @property
    def bound_bytes(self) -> BoundBytes:
        return self._binder.bound_bytes

    def run(self, batch: StepBatch) -> StepResult:
        """Compute one step, and return when it is done, so that its time is the step's.

        Raises ValueError when the batch exceeds the capacity compiled for, and FloatingPointError
        when a row's logits hold NaN or forbid every token.
        """
        binder = self._binder
        check_size(batch, binder.capacity)
        binder.results.clear()
        self._num_tokens = batch.num_tokens
        padded = None
        if self._graphs is not None:
            padded = padded_rows(batch.num_tokens, binder.capacity.max_tokens)
        with torch.inference_mode():
            self._upload(batch, padded or batch.num_tokens)
            if self._graphs is None or padded is None:
                self.run_body(batch.num_tokens)
            else:
                self._graphs.run(padded, binder.variant)
            self.run_head(batch.num_logit_rows)
        if batch.num_logit_rows == 0:  # or else reading the tokens has waited
            binder.machine.finish()
        return join_slices(binder.results)

    def run_body(self, num_rows: int) -> None:
        _run(self._body, self._token_buffers, num_rows)

    def run_head(self, num_logit_rows: int) -> None:
        """The head over all logit rows, in slices of what it was compiled for."""
        binder = self._binder
        binder.logit_slice.walk(
            num_logit_rows, binder.capacity.max_logit_rows, self._run_head_slice
        )

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """See `kernels.backend.Executable`."""
        row_symbol, tapped = self._taps[name]
        num_rows = self._num_tokens if row_symbol is Rows.TOKENS else tapped.num_rows
        rows: npt.NDArray[np.float32] = tapped.data[:num_rows].float().cpu().numpy()
        return rows

    def set_input(self, name: str, rows: npt.NDArray[np.float32]) -> None:
        """See `kernels.backend.Executable`."""
        with torch.inference_mode():
            self._inputs[name].data[: len(rows)].copy_(torch.from_numpy(rows))

    def _upload(self, batch: StepBatch, num_rows: int) -> None:
        """Copy blocks and everything that differs between steps to the device."""
        binder = self._binder
        binder.machine.settle()
        binder.kv_cache.copy_blocks(batch)
        for step_input in self._step_inputs:
            step_input.refresh(batch, num_rows)
        for prepare in binder.before_step:
            prepare(batch)

    def _run_head_slice(self) -> None:
        _run(self._head, self._logit_buffers, self._binder.logit_slice.num_rows)


def _run(kernels: Sequence[Kernel], buffers: Sequence[Activation], num_rows: int) -> None:
    for buffer in buffers:
        buffer.num_rows = num_rows
    for kernel in kernels:
        kernel()
