"""The kernel of `kernels.triton.norms`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import cast
from hasten.kernels.triton.device.quantize_rows import store_codes


@triton.jit
def normalize(x, weight, eps, WIDTH: tl.constexpr):
    """x * rsqrt(mean(x^2) + eps) * weight over the last dimension; columns past WIDTH are 0."""
    mean = tl.sum(x * x, axis=1) / WIDTH
    return x * tl.rsqrt(mean + eps)[:, None] * weight


@triton.jit(do_not_specialize=["num_rows"])
def norm_kernel(
    x,
    residual,
    weight,
    result,
    codes,  # with their scales, where GROUP_SIZE is not 0
    scales,
    eps,
    num_rows,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    RESULT_STRIDE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < num_rows)[:, None] & (column < WIDTH)
    row = row.to(tl.int64)[:, None]
    value = tl.load(x + row * X_STRIDE + column, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        held = residual + row * WIDTH + column
        value += tl.load(held, mask=mask, other=0.0).to(tl.float32)
        rounded = cast(value, residual.dtype.element_ty)
        tl.store(held, rounded, mask=mask)
        value = rounded.to(tl.float32)
    gain = tl.load(weight + column, mask=column < WIDTH, other=0.0)
    value = cast(normalize(value, gain, eps, WIDTH), result.dtype.element_ty)
    tl.store(result + row * RESULT_STRIDE + column, value, mask=mask)
    if GROUP_SIZE > 0:
        store_codes(value.to(tl.float32), codes, scales, row, num_rows, WIDTH, GROUP_SIZE)
