"""The kernels of `kernels.triton.grouped_linear`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.products import finish, sum_segments


@triton.jit(do_not_specialize=["num_pairs", "capacity"])
def list_pairs_kernel(
    routing,  # [rows, 2 NUM_ACTIVE]
    pairs,  # [experts, capacity] int32
    counts,  # [experts] int32
    num_pairs,
    capacity,
    NUM_ACTIVE: tl.constexpr,
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
        inside = (found != 0) & (position < capacity)
        tl.store(pairs + expert * capacity + position, pair, mask=inside)
        num_found += tl.sum(found, axis=0)
    tl.store(counts + expert, tl.minimum(num_found, capacity))


@triton.jit(do_not_specialize=["first_expert", "capacity", "segment_units"])
def grouped_linear_kernel(
    x,
    x_scale,
    weight,
    scale,
    offset,
    pairs,
    counts,
    result,
    first_expert,
    capacity,
    part_width,
    width,
    out_width,
    result_stride,
    segment_units,
    num_segments,
    NUM_ACTIVE: tl.constexpr,
    IS_SHARED: tl.constexpr,  # one row of x for all ranks
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    IS_EVEN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    INPUT_BY_GROUP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    part = tl.program_id(1)
    expert = first_expert + tl.program_id(2)
    count = tl.load(counts + expert)
    own_out = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    first_out = (tl.program_id(2) * tl.num_programs(1) + part) * part_width
    out = first_out + tl.minimum(own_out, part_width - 1)
    for first in range(0, count, BLOCK_ROWS):
        lane = first + tl.arange(0, BLOCK_ROWS)
        pair = tl.load(pairs + expert * capacity + tl.minimum(lane, count - 1))
        row = (pair // NUM_ACTIVE if IS_SHARED else pair).to(tl.int64)
        total = sum_segments(
            x,
            x_scale,
            weight,
            scale,
            offset,
            row,
            out,
            0,
            num_segments,
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
        value = finish(
            total,
            x_scale,
            scale,
            scale,
            row,
            out,
            KIND,
            GROUP_SIZE > 0 or INPUT_BY_GROUP,
            False,
            result.dtype.element_ty,
        )
        held = (lane < count)[:, None] & (own_out < part_width)[None, :]
        token = (pair // NUM_ACTIVE).to(tl.int64) * result_stride
        start = token + (part * NUM_ACTIVE + pair % NUM_ACTIVE) * part_width
        tl.store(result + start[:, None] + own_out[None, :], value, mask=held)
