"""The sums that all products with weights share; `kernels.triton.products` says how."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import cast, dot, dot_e4m3, to_bf16

MAGIC: tl.constexpr = tl.constexpr(0x4B000000)  # 2^23 as fp32: its low bits count ones
MAGIC_VALUE: tl.constexpr = tl.constexpr(8388608.0)


@triton.jit
def sum_segments(
    x,
    x_scale,
    weight,
    scale,
    offset,
    row,  # [block_rows] int64, rows of x
    out,  # [block_out], rows of the weight
    first,
    last,
    SEGMENT_LEN: tl.constexpr,
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    SCALES_PER_GROUP: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    INPUT_GROUPS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """Segments first .. last - 1, each summed from zero, in order: [block_out, block_rows] fp32."""
    total = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    for part in range(first, last):
        start = part * SEGMENT_LEN
        total += _segment(
            x,
            x_scale,
            weight,
            scale,
            offset,
            row,
            out,
            start,
            tl.minimum(start + SEGMENT_LEN, WIDTH),
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
    return total


@triton.jit
def _segment(
    x,
    x_scale,
    weight,
    scale,
    offset,
    row,
    out,
    start,
    stop,
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    SCALES_PER_GROUP: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    INPUT_GROUPS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """The sum over inputs start .. stop, [block_out, block_rows] fp32."""
    if KIND == "dense":
        return _dense(x, weight, row, out, start, stop, WIDTH, BLOCK_IN)
    elif KIND == "packed":
        return _packed(
            x,
            weight,
            scale,
            offset,
            row,
            out,
            start,
            stop,
            CODES,
            WIDTH,
            OUT_WIDTH,
            GROUP_SIZE,
            HAS_OFFSET,
        )
    else:
        return _fp8(
            x,
            x_scale,
            weight,
            scale,
            row,
            out,
            start,
            stop,
            WIDTH,
            OUT_WIDTH,
            SCALES_PER_GROUP,
            WEIGHT_GROUPS,
            INPUT_GROUPS,
        )


@triton.jit
def _tile(base, row, WIDTH: tl.constexpr, column, EVEN: tl.constexpr):
    """Columns `column` of rows `row` of a matrix; zeros past column WIDTH."""
    pointers = base + row[:, None] * WIDTH + column[None, :]
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(column < WIDTH)[None, :], other=0.0)


@triton.jit
def _dense(
    x,
    weight,
    row,
    out,
    start,
    stop,
    WIDTH: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    acc = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    even: tl.constexpr = WIDTH % BLOCK_IN == 0
    for k in range(start, stop, BLOCK_IN):
        column = k + tl.arange(0, BLOCK_IN)
        w = _tile(weight, out, WIDTH, column, even)
        a = _tile(x, row, WIDTH, column, even)
        acc = dot(w, tl.trans(a), acc)
    return acc


@triton.jit
def _decode(word, lane: tl.constexpr, CODES: tl.constexpr):
    """The codes in one lane of 16-bit words, as fp32."""
    if CODES == "u4":
        bits = ((word >> (4 * lane)) & 15).to(tl.uint32)
        return (bits | MAGIC).to(tl.float32, bitcast=True) - MAGIC_VALUE
    elif CODES == "i8":
        bits = ((word >> (8 * lane)) & 255).to(tl.uint32)
        return (bits | MAGIC).to(tl.float32, bitcast=True) - (MAGIC_VALUE + 128.0)
    else:
        byte = ((word >> (8 * lane)) & 255).to(tl.uint8)
        return byte.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def _packed(
    x,
    weight,
    scale,
    offset,
    row,
    out,
    start,
    stop,
    CODES: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
):
    acc = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    # Numbers of `matrices.UNIT` (32): the interpreter cannot reckon with constants of a module.
    lanes: tl.constexpr = 4 if CODES == "u4" else 2
    chunk: tl.constexpr = lanes * 32
    even: tl.constexpr = WIDTH % chunk == 0
    words_per_row: tl.constexpr = (WIDTH + chunk - 1) // chunk * 32
    last_group: tl.constexpr = (WIDTH - 1) // GROUP_SIZE
    for k in range(start, stop, chunk):
        column = k // lanes + tl.arange(0, 32)
        word = tl.load(weight + out[:, None] * words_per_row + column[None, :])
        for lane in tl.static_range(lanes):
            first = k + lane * 32
            group = tl.minimum(first // GROUP_SIZE, last_group)
            s = tl.load(scale + group * OUT_WIDTH + out)[:, None]
            w = _decode(word, lane, CODES)
            if HAS_OFFSET:
                w = tl.fma(w, s, tl.load(offset + group * OUT_WIDTH + out)[:, None])
            else:
                w = w * s
            a = _tile(x, row, WIDTH, first + tl.arange(0, 32), even)
            acc = dot(to_bf16(w), tl.trans(a), acc)
    return acc


@triton.jit
def _fp8(
    x,
    x_scale,
    weight,
    scale,
    row,
    out,
    start,
    stop,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    SCALES_PER_GROUP: tl.constexpr,
    WEIGHT_GROUPS: tl.constexpr,
    INPUT_GROUPS: tl.constexpr,
):
    acc = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    even: tl.constexpr = WIDTH % 128 == 0
    for k in range(start, stop, 128):
        column = k + tl.arange(0, 128)
        w = _tile(weight, out, WIDTH, column, even)
        a = _tile(x, row, WIDTH, column, even)
        part = dot_e4m3(w, tl.trans(a))
        if SCALES_PER_GROUP:
            group = k // 128
            s = tl.load(scale + tl.minimum(group, WEIGHT_GROUPS - 1) * OUT_WIDTH + out)
            t = tl.load(x_scale + row * INPUT_GROUPS + tl.minimum(group, INPUT_GROUPS - 1))
            acc = tl.fma(part, s[:, None] * t[None, :], acc)
        else:
            acc += part
    return acc


@triton.jit
def finish(
    total,
    x_scale,
    scale,
    bias,
    row,
    out,
    KIND: tl.constexpr,
    SCALES_PER_GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """What is stored: scales that all of a row shares, bias, one rounding. [rows, out]."""
    if KIND == "fp8" and not SCALES_PER_GROUP:
        total = total * (tl.load(scale + out)[:, None] * tl.load(x_scale + row)[None, :])
    if HAS_BIAS:
        total += tl.load(bias + out)[:, None]
    return cast(tl.trans(total), DTYPE)
