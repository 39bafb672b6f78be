"""The kernels of `kernels.triton.grouped_linear`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.products import finish, sum_segments


@triton.jit(do_not_specialize=["num_pairs"])
def list_pairs_kernel(
    routing,  # [rows, 2 NUM_ACTIVE]
    pairs,  # [experts, CAPACITY] int32
    counts,  # [experts] int32
    num_pairs,
    NUM_ACTIVE: tl.constexpr,
    CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The pairs (row * NUM_ACTIVE + rank) that chose one expert, in order."""
    expert = tl.program_id(0)
    num_found = 0
    for first in range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        place = pair // NUM_ACTIVE * (2 * NUM_ACTIVE) + pair % NUM_ACTIVE
        chosen = tl.load(routing + place, mask=pair < num_pairs, other=-1.0).to(tl.int32)
        found = (chosen == expert).to(tl.int32)
        position = num_found + tl.cumsum(found, axis=0) - 1
        # A row of NaN may name one expert twice: what is too much must not run into other lists.
        inside = (found != 0) & (position < CAPACITY)
        tl.store(pairs + expert * CAPACITY + position, pair, mask=inside)
        num_found += tl.sum(found, axis=0)
    tl.store(counts + expert, tl.minimum(num_found, CAPACITY))


@triton.jit
def grouped_linear_kernel(
    x,
    x_scale,
    weight,
    scale,
    offset,
    pairs,
    counts,
    result,
    FIRST_EXPERT: tl.constexpr,
    CAPACITY: tl.constexpr,
    NUM_ACTIVE: tl.constexpr,
    PART_WIDTH: tl.constexpr,
    EXPERT_WIDTH: tl.constexpr,  # outputs of all parts of an expert
    IS_SHARED: tl.constexpr,  # one row of x for all ranks
    RESULT_STRIDE: tl.constexpr,
    SEGMENT_LEN: tl.constexpr,
    NUM_SEGMENTS: tl.constexpr,
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    SCALES_PER_GROUP: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    INPUT_GROUPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    expert = FIRST_EXPERT + tl.program_id(1)
    count = tl.load(counts + expert)
    own_out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    inner = tl.minimum(own_out, EXPERT_WIDTH - 1)
    out = tl.program_id(1) * EXPERT_WIDTH + inner
    for first in range(0, count, BLOCK_ROWS):
        lane = first + tl.arange(0, BLOCK_ROWS)
        pair = tl.load(pairs + expert * CAPACITY + tl.minimum(lane, count - 1)).to(tl.int64)
        row = pair // NUM_ACTIVE if IS_SHARED else pair
        total = sum_segments(
            x,
            x_scale,
            weight,
            scale,
            offset,
            row,
            out,
            0,
            NUM_SEGMENTS,
            SEGMENT_LEN,
            KIND,
            CODES,
            WIDTH,
            OUT_WIDTH,
            GROUP_SIZE,
            HAS_OFFSET,
            SCALES_PER_GROUP,
            WEIGHT_GROUPS,
            INPUT_GROUPS,
            BLOCK_IN,
        )
        value = finish(
            total,
            x_scale,
            scale,
            scale,
            row,
            out,
            KIND,
            SCALES_PER_GROUP,
            False,
            result.dtype.element_ty,
        )
        rank = pair % NUM_ACTIVE
        part_column = inner // PART_WIDTH * (NUM_ACTIVE * PART_WIDTH) + inner % PART_WIDTH
        columns = (rank * PART_WIDTH)[:, None] + part_column[None, :]
        held = (lane < count)[:, None] & (own_out < EXPERT_WIDTH)[None, :]
        pointers = result + (pair // NUM_ACTIVE)[:, None] * RESULT_STRIDE + columns
        tl.store(pointers, value, mask=held)
