"""The kernels of `kernels.triton.experts`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import cast


@triton.jit(do_not_specialize=["num_rows"])
def route_kernel(
    logits,
    result,  # [rows, 2 NUM_ACTIVE]: ids | weights
    num_rows,
    NUM_EXPERTS: tl.constexpr,
    NUM_ACTIVE: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    held = row < num_rows
    column = tl.arange(0, BLOCK)[None, :]
    mask = held[:, None] & (column < NUM_EXPERTS)
    row = row.to(tl.int64)
    value = tl.load(logits + row[:, None] * NUM_EXPERTS + column, mask=mask, other=float("-inf"))
    value = tl.where(mask, value.to(tl.float32), float("-inf"))
    peak = tl.max(value, axis=1)
    likely = tl.exp(value - tl.where(held, peak, 0.0)[:, None])
    total = tl.sum(likely, axis=1)
    if RENORMALIZE:
        total = tl.zeros_like(total)
        left = value
        for _ in range(NUM_ACTIVE):
            best = tl.argmax(left, axis=1)
            chosen = column == best[:, None]
            total += tl.sum(tl.where(chosen, likely, 0.0), axis=1)
            left = tl.where(chosen, float("-inf"), left)
    total = tl.where(held, total, 1.0)
    base = result + row * (2 * NUM_ACTIVE)
    left = value
    for rank in range(NUM_ACTIVE):
        best = tl.argmax(left, axis=1)
        chosen = column == best[:, None]
        weight = tl.sum(tl.where(chosen, likely, 0.0), axis=1) / total
        tl.store(base + rank, cast(best.to(tl.float32), result.dtype.element_ty), mask=held)
        tl.store(base + NUM_ACTIVE + rank, cast(weight, result.dtype.element_ty), mask=held)
        left = tl.where(chosen, float("-inf"), left)


@triton.jit(do_not_specialize=["num_rows"])
def combine_kernel(
    x,
    routing,
    result,
    num_rows,
    WIDTH: tl.constexpr,
    NUM_ACTIVE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    held = row < num_rows
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = held[:, None] & (column < WIDTH)
    row = row.to(tl.int64)
    total = tl.zeros((BLOCK_ROWS, BLOCK), tl.float32)
    for rank in range(NUM_ACTIVE):
        place = routing + row * (2 * NUM_ACTIVE) + NUM_ACTIVE + rank
        weight = tl.load(place, mask=held, other=0.0).to(tl.float32)
        pointers = x + (row * NUM_ACTIVE + rank)[:, None] * WIDTH + column
        total = tl.fma(
            tl.broadcast_to(weight[:, None], total.shape),
            tl.load(pointers, mask=mask, other=0.0).to(tl.float32),
            total,
        )
    pointers = result + row[:, None] * WIDTH + column
    tl.store(pointers, cast(total, result.dtype.element_ty), mask=mask)
