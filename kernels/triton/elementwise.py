"""Ops that treat numbers one by one: `ActMul`, `AddScaled`, `ScaleLogits` and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
from hasten.kernels import ops
from hasten.kernels.triton.binding import warps_for
from hasten.kernels.triton.fusion import MAX_WIDTH
from hasten.kernels.triton.quantize_rows import codes_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Activation, Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.elementwise import act_mul_kernel, map_kernel

BLOCK = 1024


Elementwise = ops.ActMul | ops.AddScaled | ops.ScaleLogits | ops.Tap | ops.GatherRows | ops.Input


def supports(_op: Elementwise, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: Elementwise, binder: Binder) -> Kernel:
    if isinstance(op, ops.Input):
        return _nothing_to_do
    if isinstance(op, ops.ActMul):
        return _bind_act_mul(op, binder)
    if isinstance(op, ops.ScaleLogits):
        logits = binder.activation(op.logits)
        cap = op.softcap or 0.0
        return _scaled(logits, logits, op.scale, binder, SOFTCAP=cap)
    x, out = binder.activation(op.x), binder.activation(op.out)
    if isinstance(op, ops.AddScaled):
        return _scaled(x, out, op.scale, binder, ADD=True)
    if isinstance(op, ops.Tap):
        return _scaled(x, out, 1.0, binder)
    return _gather(x, out, binder)


def _bind_act_mul(op: ops.ActMul, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)
    codes = codes_for(op, out, binder)
    width = op.out.width
    block = min(triton.next_power_of_2(width), BLOCK if codes is None else MAX_WIDTH)
    rows = binder.rows_per_program(block)

    def act_mul() -> None:
        binder.launch(
            act_mul_kernel,
            (-(-out.num_rows // rows), -(-width // block)),
            x.data,
            out.data,
            *((out.data, out.data) if codes is None else codes.tensors),
            out.num_rows,
            num_warps=4 if codes is None else warps_for(block * rows),
            WIDTH=width,
            ACTIVATION=op.activation.value,
            GROUP_SIZE=0 if codes is None else codes.group_size,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )

    return act_mul


def _nothing_to_do() -> None:
    """The executable has put the rows of an `Input` there already."""


def _gather(x: Activation, out: Activation, binder: Binder) -> Kernel:
    """The logit rows of the slice that the head is computing."""
    wanted = binder.logit_slice
    rows = binder.token_input("logit_rows", lambda batch: batch.logit_rows)

    def gather() -> None:
        chosen = rows.data[wanted.start : wanted.stop]
        _scaled(x, out, 1.0, binder, rows=chosen, GATHER=True)()

    return gather


def _scaled(
    x: Activation,
    out: Activation,
    scale: float,
    binder: Binder,
    rows: torch.Tensor | None = None,
    **constants: Any,
) -> Kernel:
    constants = {"GATHER": False, "ADD": False, "SOFTCAP": 0.0} | constants
    operands = (x.data, out.data, x.data if rows is None else rows, scale)
    width = out.data.shape[1]
    block = min(triton.next_power_of_2(width), BLOCK)
    rows_per_program = binder.rows_per_program(block)

    def run() -> None:
        binder.launch(
            map_kernel,
            (-(-out.num_rows // rows_per_program), -(-width // block)),
            *operands,
            out.num_rows,
            num_warps=4,
            WIDTH=width,
            BLOCK=block,
            BLOCK_ROWS=rows_per_program,
            **constants,
        )

    return run
