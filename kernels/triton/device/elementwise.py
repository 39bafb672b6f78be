"""The kernels of `kernels.triton.elementwise`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import cast, tanh
from hasten.kernels.triton.device.quantize_rows import store_codes


@triton.jit
def _activate(gate, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        return gate / (1 + tl.exp(-gate))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return 0.5 * gate * (1 + tanh(inner))


@triton.jit(do_not_specialize=["num_rows"])
def act_mul_kernel(
    x,
    result,
    codes,  # with their scales, where GROUP_SIZE is not 0; a tile is then as wide as a row
    scales,
    num_rows,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (row < num_rows) & (column < WIDTH)
    gate = tl.load(x + row * (2 * WIDTH) + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * WIDTH) + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    value = cast(_activate(gate, ACTIVATION) * up, result.dtype.element_ty)
    tl.store(result + row * WIDTH + column, value, mask=mask)
    if GROUP_SIZE > 0:
        store_codes(value.to(tl.float32), codes, scales, row, num_rows, WIDTH, GROUP_SIZE)


@triton.jit(do_not_specialize=["num_rows", "scale"])
def map_kernel(
    x,
    result,
    rows,  # which rows of x, where GATHER
    scale,
    num_rows,
    WIDTH: tl.constexpr,
    GATHER: tl.constexpr,
    ADD: tl.constexpr,
    SOFTCAP: tl.constexpr,  # 0: none
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """result = scale * x, gathered, capped or added to what result holds."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    source = row
    if GATHER:
        source = tl.load(rows + row, mask=row < num_rows, other=0)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (row < num_rows)[:, None] & (column < WIDTH)
    value = tl.load(x + source.to(tl.int64)[:, None] * WIDTH + column, mask=mask, other=0.0)
    value = value.to(tl.float32) * scale
    pointers = result + row.to(tl.int64)[:, None] * WIDTH + column
    if ADD:
        value += tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    if SOFTCAP != 0:
        value = tanh(value / SOFTCAP) * SOFTCAP
    tl.store(pointers, cast(value, result.dtype.element_ty), mask=mask)
