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
    width,
    out_width,
    segment_units,  # of `products.UNIT` (128) inputs: so compiled code sees that they are aligned
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    IS_EVEN: tl.constexpr,  # width is a multiple of 128
    GROUP_SIZE: tl.constexpr,  # of the weight; 0: the row
    HAS_OFFSET: tl.constexpr,
    INPUT_BY_GROUP: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """Segments first .. last - 1, each summed from zero, in order: [block_out, block_rows] fp32."""
    total = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    for part in range(first, last):
        start = part * segment_units * 128
        total += _segment(
            x,
            x_scale,
            weight,
            scale,
            offset,
            row,
            out,
            start,
            tl.minimum(start + segment_units * 128, width),
            width,
            out_width,
            KIND,
            CODES,
            IS_EVEN,
            GROUP_SIZE,
            HAS_OFFSET,
            INPUT_BY_GROUP,
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
    width,
    out_width,
    KIND: tl.constexpr,
    CODES: tl.constexpr,
    IS_EVEN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    INPUT_BY_GROUP: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    """The sum over inputs start .. stop, [block_out, block_rows] fp32."""
    if KIND == "dense":
        return _dense(x, weight, row, out, start, stop, width, IS_EVEN, BLOCK_IN)
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
            width,
            out_width,
            CODES,
            IS_EVEN,
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
            width,
            out_width,
            IS_EVEN,
            GROUP_SIZE,
            INPUT_BY_GROUP,
        )


@triton.jit
def _tile(base, row, width, column, IS_EVEN: tl.constexpr):
    """Columns `column` of rows `row` of a matrix; zeros from column `width` on."""
    pointers = base + row[:, None] * width + column[None, :]
    if IS_EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(column < width)[None, :], other=0.0)


@triton.jit
def _dense(
    x,
    weight,
    row,
    out,
    start,
    stop,
    width,
    IS_EVEN: tl.constexpr,
    BLOCK_IN: tl.constexpr,
):
    acc = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    for k in range(start, stop, BLOCK_IN):
        column = k + tl.arange(0, BLOCK_IN)
        w = _tile(weight, out, width, column, IS_EVEN)
        a = _tile(x, row, width, column, IS_EVEN)
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
def _group(first, width, IS_EVEN: tl.constexpr, GROUP_SIZE: tl.constexpr):
    """The group of an input; of one past the last, the last group."""
    if GROUP_SIZE == 0:
        return 0
    elif IS_EVEN:
        return first // GROUP_SIZE
    else:
        return tl.minimum(first, width - 1) // GROUP_SIZE


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
    width,
    out_width,
    CODES: tl.constexpr,
    IS_EVEN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
):
    acc = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    # Numbers of `matrices.UNIT` (32): the interpreter cannot reckon with constants of a module.
    lanes: tl.constexpr = 4 if CODES == "u4" else 2
    chunk: tl.constexpr = lanes * 32
    words_per_row = (width + chunk - 1) // chunk * 32
    for k in range(start, stop, chunk):
        column = k // lanes + tl.arange(0, 32)
        word = tl.load(weight + out[:, None] * words_per_row + column[None, :])
        for lane in tl.static_range(lanes):
            first = k + lane * 32
            own = _group(first, width, IS_EVEN, GROUP_SIZE) * out_width + out
            s = tl.load(scale + own)[:, None]
            w = _decode(word, lane, CODES)
            w = tl.fma(w, s, tl.load(offset + own)[:, None]) if HAS_OFFSET else w * s
            a = _tile(x, row, width, first + tl.arange(0, 32), IS_EVEN)
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
    width,
    out_width,
    IS_EVEN: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    INPUT_BY_GROUP: tl.constexpr,
):
    acc = tl.zeros((out.shape[0], row.shape[0]), tl.float32)
    input_groups = (width + 127) // 128 if INPUT_BY_GROUP else 1
    for k in range(start, stop, 128):
        column = k + tl.arange(0, 128)
        w = _tile(weight, out, width, column, IS_EVEN)
        a = _tile(x, row, width, column, IS_EVEN)
        part = dot_e4m3(w, tl.trans(a))
        if GROUP_SIZE > 0 or INPUT_BY_GROUP:
            own = _group(k, width, IS_EVEN, GROUP_SIZE) * out_width + out
            s = tl.load(scale + own)
            t = tl.load(x_scale + row * input_groups + (k // 128 if INPUT_BY_GROUP else 0))
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
    HAS_GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """What is stored: scales that all of a row shares, bias, one rounding. [rows, out]."""
    if KIND == "fp8" and not HAS_GROUPS:
        total = total * (tl.load(scale + out)[:, None] * tl.load(x_scale + row)[None, :])
    if HAS_BIAS:
        total += tl.load(bias + out)[:, None]
    return cast(tl.trans(total), DTYPE)
