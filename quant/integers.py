"""Packed integers: 4- and 8-bit codes in 32-bit words, and as the grouped scheme holds them.

A *code* is what checkpoints store for a number: an unsigned integer of 4 or 8 bits; a *zero point*
is the code of 0. So w = scale * (code - zero), and our offset is -zero * scale, kept in the
narrowest of the scale's own type and fp32 that holds it exactly.
Exercised by `pytest tests/unit/quant/test_formats_packed.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import GroupedIntWeight

SEQUENTIAL = (0, 1, 2, 3, 4, 5, 6, 7)

U8Array = npt.NDArray[np.uint8]
I32Array = npt.NDArray[np.int32]


def unpack_words(
    words: npt.NDArray[Any], bits: int, order: tuple[int, ...] = SEQUENTIAL
) -> U8Array:
    """The codes in 32-bit words along the last axis: [..., n] to [..., n * 32 / bits].

    `order[i]` is the place, among its word's codes, of what bits i * `bits` and up hold.
    """
    as_bytes = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return as_bytes
    codes = np.stack((as_bytes & 15, as_bytes >> 4), axis=-1)
    codes = codes.reshape(*words.shape, 8)
    if order != SEQUENTIAL:
        codes = codes[..., np.argsort(order)]
    return codes.reshape(*words.shape[:-1], -1)


def pack_words(codes: U8Array, bits: int, order: tuple[int, ...] = SEQUENTIAL) -> I32Array:
    """The inverse of `unpack_words`; a last word that is not full is padded with zeros."""
    per_word = 32 // bits
    padding = -codes.shape[-1] % per_word
    if padding:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, padding)])
    words = codes.reshape(*codes.shape[:-1], -1, per_word)
    if order != SEQUENTIAL:
        words = words[..., list(order)]
    if bits == 4:
        words = pack_nibbles(words)
    return np.ascontiguousarray(words).view("<i4")[..., 0].astype(np.int32)


def make_grouped(
    bits: int,
    codes: U8Array,
    scale: npt.NDArray[Any],
    zero: npt.NDArray[Any],
    g_idx: I32Array | None = None,
) -> GroupedIntWeight:
    """The grouped weight of codes [out, in], scales and zero points [out, groups].

    A `g_idx` of consecutive groups is dropped. Raises ValueError when groups do not divide.
    """
    group_size = codes.shape[1] // scale.shape[1]
    if g_idx is not None and np.array_equal(g_idx, np.arange(codes.shape[1]) // group_size):
        g_idx = None
    scale = np.ascontiguousarray(scale)
    if bits == 4:
        return GroupedIntWeight(
            4, group_size, pack_nibbles(codes), scale, exact_offset(scale, zero), g_idx
        )
    signed = np.bitwise_xor(codes, np.uint8(128)).view(np.int8)
    shifted = zero.astype(np.int32) - 128
    offset = exact_offset(scale, shifted) if shifted.any() else None
    return GroupedIntWeight(8, group_size, signed, scale, offset, g_idx)


def codes_of(weight: GroupedIntWeight) -> U8Array:
    """The codes [out, in] of a weight made by `make_grouped`."""
    unsigned: U8Array = weight.integers().view(np.uint8)
    return np.bitwise_xor(unsigned, np.uint8(128)) if weight.bits == 8 else unsigned


def zeros_of(weight: GroupedIntWeight) -> npt.NDArray[np.int32]:
    """The zero points [out, groups] of a weight made by `make_grouped`; where scale is 0, half.

    Raises ValueError when an offset is not a whole number of scales.
    """
    middle = 1 << (weight.bits - 1)
    implied = 128 if weight.bits == 8 else 0
    if weight.offset is None:
        return np.full(weight.scale.shape, implied, np.int32)
    scale = weight.scale.astype(np.float32)
    offset = weight.offset.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = np.where(scale == 0, middle - implied, np.rint(-offset / scale))
    if not np.array_equal(-zero.astype(np.float32) * scale, offset):
        raise ValueError("an offset is not a whole number of scales: it has no zero point")
    return zero.astype(np.int32) + implied


def pack_nibbles(codes: U8Array) -> U8Array:
    """Two 4-bit codes per byte, the even one in the low half: [..., n] to [..., n / 2]."""
    return np.bitwise_or(codes[..., ::2], np.left_shift(codes[..., 1::2], np.uint8(4)))


def exact_offset(scale: npt.NDArray[Any], zero: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """-zero * scale in the scale's own type where that is exact, else in fp32."""
    wide = -zero.astype(np.float32) * scale.astype(np.float32)
    limit = np.float32(65504.0)
    if not np.abs(wide).max(initial=0) <= limit:
        return wide
    narrow = wide.astype(scale.dtype)
    return narrow if np.array_equal(narrow.astype(np.float32), wide) else wide
