"""`ops.RmsNorm` and `ops.NormColumns`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from hasten.kernels import ops
from hasten.kernels.triton.binding import warps_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Activation, Binder, Kernel
    from hasten.kernels.triton.quantize_rows import Codes
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.norms import norm_kernel
from hasten.kernels.triton.quantize_rows import codes_for

MAX_WIDTH = 32768
"""The longest row that one program holds."""


def supports(
    op: ops.RmsNorm | ops.NormColumns, _weights: Mapping[WeightName, Weight]
) -> str | None:
    width = op.x.width if isinstance(op, ops.RmsNorm) else op.stop - op.start
    return None if width <= MAX_WIDTH else f"rows of {width}, more than {MAX_WIDTH}"


def bind(op: ops.RmsNorm | ops.NormColumns, binder: Binder) -> Kernel:
    x = binder.activation(op.x)
    if isinstance(op, ops.NormColumns):
        columns = x.data[:, op.start : op.stop]
        return _norm(op, x, columns, columns, None, None, binder)
    out = binder.activation(op.out)
    residual = None if op.residual is None else binder.activation(op.residual).data
    return _norm(op, x, x.data, out.data, residual, codes_for(op, out, binder), binder)


def _norm(
    op: ops.RmsNorm | ops.NormColumns,
    x: Activation,
    source: torch.Tensor,
    result: torch.Tensor,
    residual: torch.Tensor | None,
    codes: Codes | None,
    binder: Binder,
) -> Kernel:
    weight = binder.vector(op.weight)
    width = source.shape[1]
    block = triton.next_power_of_2(width)
    rows = binder.rows_per_program(block)

    def norm() -> None:
        binder.launch(
            norm_kernel,
            (-(-x.num_rows // rows),),
            source,
            source if residual is None else residual,
            weight,
            result,
            *((result, result) if codes is None else codes.tensors),
            op.eps,
            x.num_rows,
            num_warps=warps_for(block * rows),
            WIDTH=width,
            X_STRIDE=source.stride(0),
            RESULT_STRIDE=result.stride(0),
            HAS_RESIDUAL=residual is not None,
            GROUP_SIZE=0 if codes is None else codes.group_size,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )

    return norm
