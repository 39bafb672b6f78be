"""Conversions and products of tiles, which Triton 3.9's interpreter gets wrong on its own.

Measured: the interpreter truncates fp32 to bf16 instead of rounding, loses the carry when it
rounds to e4m3, and multiplies bf16 tiles as if they were integers. Compiled code uses the
hardware's instructions; interpreted code the exact arithmetic below. Not here: what is rounded
when, which every kernel says itself. Exercised by `pytest tests/cpu/triton/test_numbers.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)
E4M3_MAX: tl.constexpr = tl.constexpr(448.0)
_SUBNORMAL_MAGIC: tl.constexpr = tl.constexpr(1.5 * 2.0**14)  # whose last place is 2^-9


@triton.jit
def to_bf16(x):
    """fp32 to bf16, nearest even."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x != x, 0x7FC0, rounded)
        return rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """fp32 to `dtype`, nearest even."""
    if dtype == tl.bfloat16:
        return to_bf16(x)
    else:
        return x.to(dtype)


@triton.jit
def to_e4m3(x):
    """fp32 to e4m3, clamped to +-448, nearest even."""
    x = tl.minimum(tl.maximum(x, -E4M3_MAX), E4M3_MAX)
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000
        normal = bits.to(tl.float32, bitcast=True)
        subnormal = (x + _SUBNORMAL_MAGIC) - _SUBNORMAL_MAGIC
        x = tl.where(tl.abs(x) < 0.015625, subnormal, normal)
    return x.to(tl.float8e4nv)


@triton.jit
def _exact_dot(a, b):
    """For the interpreter: a sum in fp64, so that fp32 sees the same value at any tile size."""
    zero = tl.zeros((a.shape[0], b.shape[1]), tl.float64)
    wide = tl.dot(a.to(tl.float64), b.to(tl.float64), zero, out_dtype=tl.float64)
    return wide.to(tl.float32)


@triton.jit
def dot(a, b, acc):
    """acc + a @ b in fp32; a and b are bf16 tiles."""
    if INTERPRETED:
        return acc + _exact_dot(a.to(tl.float32), b.to(tl.float32))
    else:
        return tl.dot(a, b, acc)


@triton.jit
def dot_e4m3(a, b):
    """a @ b of e4m3 tiles, from zero: the hardware's sums lose bits where they run long."""
    if INTERPRETED:
        return _exact_dot(a.to(tl.float32), b.to(tl.float32))
    else:
        zero = tl.zeros((a.shape[0], b.shape[1]), tl.float32)
        return tl.dot(a, b, zero, max_num_imprecise_acc=a.shape[1])


@triton.jit
def tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)
