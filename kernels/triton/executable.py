"""A program bound to its weights: uploads the step, runs the body, then the head in slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hasten.kernels.program import Rows
from hasten.kernels.reference.executable import join_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    from hasten.kernels.program import Program
    from hasten.kernels.step import StepBatch, StepResult
    from hasten.kernels.triton.binding import Activation, Binder, Kernel


class TritonExecutable:
    """Launches the kernels in order. Made by `TritonBackend.compile`."""

    def __init__(
        self, program: Program, binder: Binder, body: Sequence[Kernel], head: Sequence[Kernel]
    ) -> None:
        self._binder = binder
        self._body = tuple(body)
        self._head = tuple(head)
        self._token_buffers = self._activations(program, Rows.TOKENS)
        self._logit_buffers = self._activations(program, Rows.LOGITS)
        self._step_inputs = tuple(binder.inputs.values())
        self._inputs = {name: binder.activation(buffer) for name, buffer in program.inputs.items()}
        self._taps = {name: binder.activation(buffer) for name, buffer in program.taps.items()}

    def run(self, batch: StepBatch) -> StepResult:
        """Compute one step. Raises ValueError when the batch exceeds the capacity compiled for,
        and FloatingPointError when a row's logits hold NaN or forbid every token.
        """
        self._check(batch)
        self._binder.results.clear()
        with torch.inference_mode():
            self._binder.kv_cache.copy_blocks(batch)
            for step_input in self._step_inputs:
                step_input.refresh(batch)
            for prepare in self._binder.before_step:
                prepare(batch)
            self.run_body(batch.num_tokens)
            self.run_head(batch.num_logit_rows)
        return join_slices(self._binder.results)

    def run_body(self, num_tokens: int) -> None:
        for buffer in self._token_buffers:
            buffer.num_rows = num_tokens
        for kernel in self._body:
            kernel()

    def run_head(self, num_logit_rows: int) -> None:
        """The head over all logit rows, in slices of what it was compiled for."""
        wanted = self._binder.logit_slice
        for start in range(0, num_logit_rows, self._binder.capacity.max_logit_rows):
            wanted.start = start
            wanted.stop = min(start + self._binder.capacity.max_logit_rows, num_logit_rows)
            for buffer in self._logit_buffers:
                buffer.num_rows = wanted.stop - wanted.start
            for kernel in self._head:
                kernel()

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """See `kernels.backend.Executable`."""
        tapped = self._taps[name]
        rows: npt.NDArray[np.float32] = tapped.data[: tapped.num_rows].float().cpu().numpy()
        return rows

    def set_input(self, name: str, rows: npt.NDArray[np.float32]) -> None:
        """See `kernels.backend.Executable`."""
        with torch.inference_mode():
            self._inputs[name].data[: len(rows)].copy_(torch.from_numpy(rows))

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
