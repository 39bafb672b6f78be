"""The kernel of `kernels.triton.embed`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import cast


@triton.jit(do_not_specialize=["num_rows", "factor"])
def embed_kernel(
    token_ids,
    table,
    scale,  # [vocabulary, groups]
    offset,
    result,
    factor,
    num_rows,
    BITS: tl.constexpr,  # 0: the table is plain
    WIDTH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token_id = tl.load(token_ids + row, mask=row < num_rows, other=0).to(tl.int64)[:, None]
    for first in range(0, WIDTH, BLOCK):
        column = (first + tl.arange(0, BLOCK))[None, :]
        mask = (row < num_rows)[:, None] & (column < WIDTH)
        if BITS == 0:
            value = tl.load(table + token_id * WIDTH + column, mask=mask).to(tl.float32)
        else:
            per_byte: tl.constexpr = 8 // BITS
            byte = tl.load(table + token_id * (WIDTH // per_byte) + column // per_byte, mask=mask)
            if BITS == 4:
                byte = (byte >> ((column % 2) * 4)) & 15
            group = token_id * (WIDTH // GROUP_SIZE) + column // GROUP_SIZE
            value = byte.to(tl.float32) * tl.load(scale + group, mask=mask)
            if HAS_OFFSET:
                value += tl.load(offset + group, mask=mask)
        pointers = result + row.to(tl.int64)[:, None] * WIDTH + column
        tl.store(pointers, cast(value * factor, result.dtype.element_ty), mask=mask)
