"""Embeddings: the final hidden states of a prompt, pooled over its tokens.

The states are those that the head reads: behind the last norm, in front of the logits. The recorded
step taps them for all its tokens (`with_final_hidden`), and a `Pooler` keeps what requests ask for.
A request that pools all its tokens computes them all, in blocks of its own. Sums are of float64,
token by token, so it does not matter how the prompt was cut.
Exercised by `pytest tests/cpu/engine/test_embeddings.py`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.models.weights import FINAL_NORM
from hasten.kernels.ops import GatherRows, Tap
from hasten.kernels.program import Buffer, Rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from hasten.core.plan import PlannedRequest, StepPlan
    from hasten.core.request import Request, RequestId
    from hasten.kernels.backend import Executable
    from hasten.kernels.ops import Op
    from hasten.kernels.program import Program
    from hasten.kernels.step import StepBatch

    F64 = npt.NDArray[np.float64]

HIDDEN = "final_hidden"
"""The tap of the final hidden states, [T, hidden]."""
MEAN, LAST = "mean", "last"
METHODS = (MEAN, LAST)


def with_final_hidden(program: Program) -> Program:
    """The same step with the tap `HIDDEN`; its tokens stay the same, bit for bit.

    What the head does up to its norm is done, on copies, for all rows at the end of the body.
    """
    body, head = program.split()
    tapped = replace(program, ops=[], buffers=list(program.buffers), taps=dict(program.taps))
    for op in body:
        tapped.add(op)
    copies: dict[Buffer, Buffer] = {}
    for op in head[: _num_ops_to_hidden(head)]:
        tapped.add(_on_all_rows(op, tapped, copies))
    tapped.tap(HIDDEN, list(copies.values())[-1])
    for op in head:
        tapped.add(op)
    return tapped


def _num_ops_to_hidden(head: tuple[Op, ...]) -> int:
    """Up to the final norm; a foreign body has done that already, so up to the gathering."""
    normed = (i for i, op in enumerate(head, start=1) if FINAL_NORM in op.weights())
    return next(normed, 1)


def _on_all_rows(op: Op, program: Program, copies: dict[Buffer, Buffer]) -> Op:
    """An op of the head over T rows. `copies` are its buffers' counterparts."""
    for written in op.writes():
        if written not in copies:
            copies[written] = program.buffer(
                f"all.{written.name}", Rows.TOKENS, written.width, written.dtype
            )
    if isinstance(op, GatherRows):
        return Tap(op.x, copies[op.out])
    operands = {
        field.name: copies[value]
        for field in fields(op)
        if isinstance(value := getattr(op, field.name), Buffer)
    }
    return replace(op, **operands)


class Pooler:
    """Pools the hidden states of requests while they are computed. Reads the tap `HIDDEN`."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._executable: Executable | None = None
        self._pooled: dict[RequestId, F64] = {}

    def take(self, batch: StepBatch, executable: Executable) -> None:  # noqa: ARG002  the interface
        """A step has been computed; its rows are read where some request wants them."""
        self._executable = executable

    def collect(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> None:
        """Take what the step just computed gave to requests that pool."""
        end = 0
        for planned in plan.requests:
            begin, end = end, end + planned.num_tokens
            request = requests[planned.request_id]
            if request.pooling:
                assert self._executable is not None
                self._add(request, planned, self._executable.tap(HIDDEN)[begin:end])

    def pop(self, request: Request) -> list[float]:
        """The embedding of a request whose prompt is computed."""
        pooled = self._pooled.pop(request.request_id)
        if request.pooling == MEAN:
            pooled = pooled / request.num_prompt_tokens
        values: list[float] = pooled.tolist()
        return values

    def forget(self, request_id: RequestId) -> None:
        self._pooled.pop(request_id, None)

    def _add(
        self, request: Request, planned: PlannedRequest, rows: npt.NDArray[np.float32]
    ) -> None:
        if request.pooling == LAST:
            self._pooled[request.request_id] = rows[-1].astype(np.float64)
            return
        # From the start again after a preemption.
        before = self._pooled[request.request_id] if planned.start else np.zeros(self.width)
        self._pooled[request.request_id] = np.add.reduce(np.vstack((before, rows)), axis=0)
