"""The kernel of `kernels.triton.rope_store_kv`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.device.numbers import E4M3_MAX, cast, to_bf16, to_e4m3


@triton.jit
def _place(value, pointers, mask, cache, scales, base, slot, static, IS_FP8: tl.constexpr,
           IS_STATIC: tl.constexpr):  # fmt: skip
    """Write rows of K or V to the cache, as e4m3 with a scale per row where it is fp8."""
    if IS_FP8:
        if IS_STATIC:
            scale = to_bf16(tl.zeros_like(slot).to(tl.float32) + static)
        else:
            peak = tl.max(tl.abs(value), axis=1)
            scale = to_bf16(tl.div_rn(peak, tl.zeros_like(peak) + E4M3_MAX))
        used = scale.to(tl.float32)
        used = tl.where(used == 0.0, 1.0, used)
        ratio = tl.div_rn(value, tl.broadcast_to(used[:, None], value.shape))
        tl.store(cache + pointers, to_e4m3(ratio), mask=mask)
        tl.store(scales + base, to_bf16(used), mask=slot >= 0)
    else:
        tl.store(cache + pointers, cast(value, cache.dtype.element_ty), mask=mask)


@triton.jit
def _norm_head(
    value, other, weight, column, partner, eps, HEAD_SIZE: tl.constexpr, HALF: tl.constexpr
):
    """RMS norm of a head's columns, and of what they are rotated with."""
    inverse = tl.rsqrt(tl.sum(value * value, axis=1) / HEAD_SIZE + eps)[:, None]
    gain = tl.load(weight + column, mask=column < HEAD_SIZE, other=0.0)
    other_gain = tl.load(weight + partner, mask=column < 2 * HALF, other=0.0)
    return value * inverse * gain[None, :], other * inverse * other_gain[None, :]


@triton.jit(do_not_specialize=["num_rows", "static_k", "static_v"])
def rope_store_kv_kernel(
    qkv,
    positions,
    slots,
    cosines,  # [max_model_len, HALF] fp32
    sines,
    q_norm,
    k_norm,
    cache,
    scales,
    eps,
    static_k,
    static_v,
    num_rows,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,  # rotary_dim / 2
    BLOCK_SIZE: tl.constexpr,
    NORM_Q: tl.constexpr,
    NORM_K: tl.constexpr,
    IS_FP8: tl.constexpr,
    IS_STATIC: tl.constexpr,
    BLOCK_HEAD: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    head = tl.program_id(1)
    held = row < num_rows
    column = tl.arange(0, BLOCK_HEAD)
    # Every column meets the one it is rotated with: the other half's, with the sign of its sine.
    low = column < HALF
    rotated = column < 2 * HALF
    partner = tl.where(low, column + HALF, column - HALF)
    angle = tl.where(low, column, column - HALF)
    mask = held[:, None] & (column < HEAD_SIZE)[None, :]
    turn = held[:, None] & rotated[None, :]
    WIDTH: tl.constexpr = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_SIZE
    base = row.to(tl.int64)[:, None] * WIDTH + head * HEAD_SIZE
    value = tl.load(qkv + base + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        other = tl.load(qkv + base + partner[None, :], mask=turn, other=0.0).to(tl.float32)
        if NORM_Q:
            if head < NUM_HEADS:
                value, other = _norm_head(
                    value, other, q_norm, column, partner, eps, HEAD_SIZE, HALF
                )
        if NORM_K:
            if head >= NUM_HEADS:
                value, other = _norm_head(
                    value, other, k_norm, column, partner, eps, HEAD_SIZE, HALF
                )
        position = tl.load(positions + row, mask=held, other=0).to(tl.int64)[:, None]
        cosine = tl.load(cosines + position * HALF + angle[None, :], mask=turn, other=1.0)
        sine = tl.load(sines + position * HALF + angle[None, :], mask=turn, other=0.0)
        value = value * cosine + tl.where(low[None, :], -other, other) * sine
    if head < NUM_HEADS:
        tl.debug_barrier()  # other lanes have read what this one overwrites
        tl.store(qkv + base + column[None, :], cast(value, qkv.dtype.element_ty), mask=mask)
    else:
        is_v = head >= NUM_HEADS + NUM_KV_HEADS
        kv_head = head - NUM_HEADS - tl.where(is_v, NUM_KV_HEADS, 0)
        slot = tl.load(slots + row, mask=held, other=-1)
        block = (slot // BLOCK_SIZE).to(tl.int64)
        place = ((block * NUM_KV_HEADS + kv_head) * 2 + is_v.to(tl.int32)) * BLOCK_SIZE
        place += slot % BLOCK_SIZE
        pointers = place[:, None] * HEAD_SIZE + column[None, :]
        static = tl.where(is_v, static_v, static_k)
        # K is rounded as q is, before the cache rounds it further.
        value = cast(value, qkv.dtype.element_ty).to(tl.float32)
        _place(value, pointers, mask, cache, scales, place, slot, static, IS_FP8, IS_STATIC)
