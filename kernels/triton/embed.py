"""`ops.Embed`: rows of a table, dense or of integers in groups, which are unpacked here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from hasten.kernels.weights import DenseWeight, GroupedIntWeight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.embed import embed_kernel
from hasten.kernels.triton.linear import bind_matrices


def supports(_op: ops.Embed, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.Embed, binder: Binder) -> Kernel:
    out = binder.activation(op.out)
    weight = binder.weights[op.table]
    token_ids = binder.token_input("token_ids", lambda batch: batch.token_ids)
    table, scale, offset = binder.once(("embed", op.table), lambda: _tables(op.table, binder))
    grouped = weight if isinstance(weight, GroupedIntWeight) else None
    if grouped is not None and grouped.g_idx is not None:
        grouped = None
    block = min(triton.next_power_of_2(op.out.width), 1024)
    rows = binder.rows_per_program(block)

    def embed() -> None:
        binder.launch(
            embed_kernel,
            (-(-out.num_rows // rows),),
            token_ids.data,
            table,
            scale,
            offset,
            out.data,
            op.scale,
            out.num_rows,
            num_warps=4,
            BITS=0 if grouped is None else grouped.bits,
            WIDTH=op.out.width,
            GROUP_SIZE=1 if grouped is None else grouped.group_size,
            HAS_OFFSET=grouped is not None and grouped.offset is not None,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )

    return embed


def _tables(name: WeightName, binder: Binder) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and offsets; a plain table, thrice, for what is not integers in groups."""
    weight = binder.weights[name]
    if isinstance(weight, GroupedIntWeight) and weight.g_idx is None:
        scale = binder.to_device(weight.scale).float()
        offset = scale if weight.offset is None else binder.to_device(weight.offset).float()
        return binder.to_device(weight.q), scale, offset
    if isinstance(weight, DenseWeight) and weight.data.dtype.name == "bfloat16":
        table = bind_matrices(name, binder)[0].data  # a tied head's, where there is one
    elif isinstance(weight, DenseWeight):
        table = binder.to_device(weight.data)
    else:
        table = binder.to_device(weight.dequantize())
    return table, table, table
