"""`ops.RmsNorm` and `ops.NormColumns`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from hasten.kernels import ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Activation, Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.norms import norm_kernel

MAX_WIDTH = 32768


def supports(
    op: ops.RmsNorm | ops.NormColumns, _weights: Mapping[WeightName, Weight]
) -> str | None:
    width = op.x.width if isinstance(op, ops.RmsNorm) else op.stop - op.start
    return None if width <= MAX_WIDTH else f"rows of {width}, more than {MAX_WIDTH}"


def bind(op: ops.RmsNorm | ops.NormColumns, binder: Binder) -> Kernel:
    x = binder.activation(op.x)
    if isinstance(op, ops.NormColumns):
        columns = x.data[:, op.start : op.stop]
        return _norm(op, x, columns, columns, None, binder)
    residual = None if op.residual is None else binder.activation(op.residual).data
    return _norm(op, x, x.data, binder.activation(op.out).data, residual, binder)


def _norm(
    op: ops.RmsNorm | ops.NormColumns,
    x: Activation,
    source: torch.Tensor,
    result: torch.Tensor,
    residual: torch.Tensor | None,
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
            op.eps,
            x.num_rows,
            num_warps=warps_for(block * rows),
            WIDTH=width,
            X_STRIDE=source.stride(0),
            RESULT_STRIDE=result.stride(0),
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )

    return norm


def warps_for(num_elements: int) -> int:
    """So many that a thread holds about eight elements of a tile."""
    return max(1, min(16, int(triton.next_power_of_2(num_elements)) // 256))
