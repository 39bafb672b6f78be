"""The kernel of `kernels.triton.linear`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.products import finish, sum_segments


@triton.jit(do_not_specialize=["num_rows", "segment_units"])
def linear_kernel(
    x,
    x_scale,
    weight,
    scale,
    offset,
    bias,
    result,
    partial,  # [segments, rows, out_width] fp32
    arrived,  # [tiles] int32, zero between launches
    num_rows,
    width,
    out_width,
    result_stride,
    segment_units,
    num_segments,
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    IS_EVEN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    INPUT_BY_GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPREAD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    own_row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    own_out = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    row = tl.minimum(own_row, num_rows - 1).to(tl.int64)
    out = tl.minimum(own_out, out_width - 1)
    first = tl.program_id(2) if SPREAD else 0
    total = sum_segments(
        x,
        x_scale,
        weight,
        scale,
        offset,
        row,
        out,
        first,
        first + 1 if SPREAD else num_segments,
        width,
        out_width,
        segment_units,
        KIND,
        CODES,
        IS_EVEN,
        GROUP_SIZE,
        HAS_OFFSET,
        INPUT_BY_GROUP,
        BLOCK_IN,
    )
    held = (own_row < num_rows)[:, None] & (own_out < out_width)[None, :]
    is_last = True
    if SPREAD:
        own = partial + own_row[:, None] * out_width + own_out[None, :]
        stride = num_rows * out_width
        tl.store(own + first * stride, tl.trans(total), mask=held)
        tl.debug_barrier()  # all of the tile is written before its arrival is counted
        tile = arrived + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        is_last = tl.atomic_add(tile, 1) == num_segments - 1
        if is_last:
            sums = tl.zeros((BLOCK_ROWS, BLOCK_OUT), tl.float32)
            for part in range(num_segments):
                sums += tl.load(own + part * stride, mask=held, other=0.0, cache_modifier=".cg")
            total = tl.trans(sums)
            tl.store(tile, 0)
    if is_last:
        value = finish(
            total,
            x_scale,
            scale,
            bias,
            row,
            out,
            KIND,
            GROUP_SIZE > 0 or INPUT_BY_GROUP,
            HAS_BIAS,
            result.dtype.element_ty,
        )
        pointers = result + own_row.to(tl.int64)[:, None] * result_stride + own_out[None, :]
        tl.store(pointers, value, mask=held)
