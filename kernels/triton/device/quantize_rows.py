"""The kernel of `kernels.triton.quantize_rows`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import E4M3_MAX, to_e4m3


@triton.jit
def store_codes(value, codes, scales, row, num_rows, WIDTH: tl.constexpr, GROUP_SIZE: tl.constexpr):
    """Quantise a tile of whole rows, which is 0 past WIDTH; `row` is [rows, 1] int64."""
    width: tl.constexpr = value.shape[1]
    tall: tl.constexpr = value.shape[0]
    # A single group may be no power of two: it is all that the tile holds.
    size: tl.constexpr = GROUP_SIZE if GROUP_SIZE < WIDTH else width
    num_groups: tl.constexpr = (WIDTH + GROUP_SIZE - 1) // GROUP_SIZE
    grouped = tl.reshape(value, (tall, width // size, size))
    peak = tl.max(tl.abs(grouped), axis=2)
    scale = tl.div_rn(peak, tl.zeros_like(peak) + E4M3_MAX)
    scale = tl.where(scale == 0.0, 1.0, scale)
    group = tl.arange(0, width // size)[None, :]
    own = (row < num_rows) & (group < num_groups)
    tl.store(scales + row * num_groups + group, scale, mask=own)
    ratio = tl.div_rn(grouped, tl.broadcast_to(scale[:, :, None], grouped.shape))
    column = tl.arange(0, width)[None, :]
    mask = (row < num_rows) & (column < WIDTH)
    tl.store(codes + row * WIDTH + column, to_e4m3(tl.reshape(ratio, value.shape)), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "static_scale"])
def quantize_rows_kernel(
    x,
    codes,
    scales,  # [rows, NUM_GROUPS] fp32
    static_scale,
    num_rows,
    WIDTH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    IS_STATIC: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    group = tl.program_id(1)
    start = group * GROUP_SIZE
    stop = tl.minimum(start + GROUP_SIZE, WIDTH)
    held = (row < num_rows)[:, None]
    base = row.to(tl.int64)[:, None] * WIDTH
    if IS_STATIC:
        scale = tl.full((BLOCK_ROWS,), 0.0, tl.float32) + static_scale
    else:
        peak = tl.zeros((BLOCK_ROWS,), tl.float32)
        for first in range(start, stop, BLOCK):
            column = (first + tl.arange(0, BLOCK))[None, :]
            value = tl.load(x + base + column, mask=held & (column < stop), other=0.0)
            peak = tl.maximum(peak, tl.max(tl.abs(value.to(tl.float32)), axis=1))
        scale = tl.div_rn(peak, tl.full((BLOCK_ROWS,), E4M3_MAX, tl.float32))
        scale = tl.where(scale == 0.0, 1.0, scale)
    tl.store(scales + row * NUM_GROUPS + group, scale, mask=row < num_rows)
    for first in range(start, stop, BLOCK):
        column = (first + tl.arange(0, BLOCK))[None, :]
        mask = held & (column < stop)
        value = tl.load(x + base + column, mask=mask, other=0.0).to(tl.float32)
        ratio = tl.div_rn(value, tl.broadcast_to(scale[:, None], value.shape))
        tl.store(codes + base + column, to_e4m3(ratio), mask=mask)
