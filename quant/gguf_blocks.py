"""GGUF block formats: kept packed where our schemes hold them without loss, else dequantised.

Formats of 32 or 256 inputs per block whose numbers are scale * integer + offset become
`GroupedIntWeight`s whose `dequantize` gives exactly the numbers that the format defines: Q4_0, Q4_1
and Q4_K with 4 bits; Q5_0, Q5_1, Q5_K, Q6_K and Q8_0 with 8. All other types that the `gguf`
package can dequantise become dense.
Source: block layouts of ggml (ggml-common.h, the structs `block_q4_0` to `block_q6_K`).
Exercised by `pytest tests/unit/quant/test_gguf_blocks.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import DenseWeight, GroupedIntWeight
from hasten.quant.ggml_types import GGMLType
from hasten.quant.integers import pack_nibbles
from ml_dtypes import bfloat16

BLOCK_LEN = 32

U8Array = npt.NDArray[np.uint8]
F16Array = npt.NDArray[np.float16]
F32Array = npt.NDArray[np.float32]

_PLAIN_DTYPES: dict[GGMLType, npt.DTypeLike] = {
    GGMLType.F32: np.float32,
    GGMLType.F16: np.float16,
    GGMLType.BF16: bfloat16,
}


def decode(tensor_type: GGMLType, raw: U8Array) -> DenseWeight | GroupedIntWeight:
    """The matrix in `raw` [rows, bytes per row], of whichever scheme loses nothing.

    Raises ValueError for a type that nobody dequantises, or for damaged scales.
    """
    plain = _PLAIN_DTYPES.get(tensor_type)
    if plain is not None:
        return DenseWeight(raw.view(plain))
    unpack = _PACKED.get(tensor_type)
    if unpack is not None:
        return unpack(raw)
    return DenseWeight(_dequantize(tensor_type, raw))


def _dequantize(tensor_type: GGMLType, raw: U8Array) -> F32Array:
    # Here and not above: see `ggml_types`.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        values: F32Array = dequantize(raw, GGMLQuantizationType(tensor_type))
    except NotImplementedError as error:
        raise ValueError(f"type {tensor_type.name} is not supported") from error
    return values


def _unpack_q4_0(raw: U8Array) -> GroupedIntWeight:
    """The format means d (q - 8), so the offset is -8 d."""
    d, nibbles = _fields(raw, 2, 16)
    scale: npt.NDArray[np.floating] = _fp16(d)
    offset: npt.NDArray[np.floating] = scale.astype(np.float32) * np.float32(-8)
    if np.abs(offset).max(initial=0) <= np.finfo(np.float16).max:
        offset = offset.astype(np.float16)  # exact: multiplying by 8 only moves the exponent
    else:
        scale = scale.astype(np.float32)  # kernels read both as one type
    return GroupedIntWeight(4, BLOCK_LEN, _interleave_nibbles(nibbles), scale, offset)


def _unpack_q4_1(raw: U8Array) -> GroupedIntWeight:
    """The format means d q + m."""
    d, m, nibbles = _fields(raw, 2, 2, 16)
    return GroupedIntWeight(4, BLOCK_LEN, _interleave_nibbles(nibbles), _fp16(d), _fp16(m))


def _unpack_q5_0(raw: U8Array) -> GroupedIntWeight:
    """The format means d (q - 16)."""
    d, fifth_bits, nibbles = _fields(raw, 2, 4, 16)
    integers = _five_bits(nibbles, fifth_bits).view(np.int8) - np.int8(16)
    return GroupedIntWeight(8, BLOCK_LEN, integers, _fp16(d), None)


def _unpack_q5_1(raw: U8Array) -> GroupedIntWeight:
    """The format means d q + m."""
    d, m, fifth_bits, nibbles = _fields(raw, 2, 2, 4, 16)
    integers = _five_bits(nibbles, fifth_bits).view(np.int8)
    return GroupedIntWeight(8, BLOCK_LEN, integers, _fp16(d), _fp16(m))


def _unpack_q8_0(raw: U8Array) -> GroupedIntWeight:
    """The format means d q."""
    d, integers = _fields(raw, 2, 32)
    q = np.ascontiguousarray(integers).view(np.int8).reshape(raw.shape[0], -1)
    return GroupedIntWeight(8, BLOCK_LEN, q, _fp16(d), None)


def _unpack_q4_k(raw: U8Array) -> GroupedIntWeight:
    """256 inputs in 8 groups: d s q - dmin m, with 6-bit s and m per group."""
    d, dmin, scales, nibbles = _fields(raw, 2, 2, 12, 128)
    quarters = nibbles.reshape(*nibbles.shape[:2], 4, 32)
    q = pack_nibbles(_planes(quarters, 2).reshape(raw.shape[0], -1))
    return GroupedIntWeight(4, 32, q, *_six_bit_scales(d, dmin, scales))


def _unpack_q5_k(raw: U8Array) -> GroupedIntWeight:
    """As Q4_K, the fifth bits of group g being bit g of 32 bytes."""
    d, dmin, scales, fifth_bits, nibbles = _fields(raw, 2, 2, 12, 32, 128)
    quarters = nibbles.reshape(*nibbles.shape[:2], 4, 32)
    low = _planes(quarters, 2).reshape(*nibbles.shape[:2], 8, 32)
    q = low | (_planes(fifth_bits, 8) << 4)
    return GroupedIntWeight(
        8, 32, q.reshape(raw.shape[0], -1).view(np.int8), *_six_bit_scales(d, dmin, scales)
    )


def _unpack_q6_k(raw: U8Array) -> GroupedIntWeight:
    """256 inputs in 16 groups: d s (q - 32), with 8-bit s per group."""
    nibbles, pairs, scales, d = _fields(raw, 128, 64, 16, 2)
    halves = nibbles.shape[:2]
    low = _planes(nibbles.reshape(*halves, 2, 64), 2).reshape(*halves, 2, 4, 32)
    high = _planes(pairs.reshape(*halves, 2, 32), 4)
    q = (low | (high << 4)).reshape(raw.shape[0], -1).view(np.int8) - np.int8(32)
    signed = np.ascontiguousarray(scales).view(np.int8).astype(np.float32)
    scale = _fp16(d).astype(np.float32)[:, :, None] * signed
    return GroupedIntWeight(8, 16, q, scale.reshape(raw.shape[0], -1), None)


_PACKED = {
    GGMLType.Q4_0: _unpack_q4_0,
    GGMLType.Q4_1: _unpack_q4_1,
    GGMLType.Q5_0: _unpack_q5_0,
    GGMLType.Q5_1: _unpack_q5_1,
    GGMLType.Q8_0: _unpack_q8_0,
    GGMLType.Q4_K: _unpack_q4_k,
    GGMLType.Q5_K: _unpack_q5_k,
    GGMLType.Q6_K: _unpack_q6_k,
}


def _fields(raw: U8Array, *sizes: int) -> list[U8Array]:
    """The byte fields of every block, in the order of the block's struct: [rows, blocks, size]."""
    blocks = raw.reshape(raw.shape[0], -1, sum(sizes))
    return np.split(blocks, np.cumsum(sizes)[:-1], axis=-1)


def _fp16(field: U8Array) -> F16Array:
    """Two-byte fields as the numbers they are, [rows, blocks]."""
    numbers = np.ascontiguousarray(field).view(np.float16)[:, :, 0]
    if not np.isfinite(numbers).all():
        raise ValueError("a block scale is not finite")
    return numbers


def _planes(packed: U8Array, num_planes: int) -> U8Array:
    """Bytes cut into `num_planes` fields, lowest bits first: [..., n] to [..., num_planes, n]."""
    bits = 8 // num_planes
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    planes: U8Array = (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)
    return planes


def _five_bits(nibbles: U8Array, fifth_bits: U8Array) -> U8Array:
    """Blocks of 32: 16 bytes with the low bits of inputs j and j + 16, and 32 fifth bits."""
    low = _planes(nibbles, 2).reshape(*nibbles.shape[:2], BLOCK_LEN)
    high = np.unpackbits(fifth_bits, axis=-1, bitorder="little")
    integers: U8Array = low | (high << np.uint8(4))
    return integers.reshape(nibbles.shape[0], -1)


def _six_bit_scales(d: U8Array, dmin: U8Array, packed: U8Array) -> tuple[F32Array, F32Array]:
    """Scale and offset of the 8 groups of each block, [rows, 8 blocks] fp32, from 12 bytes.

    Groups 0 to 3 lie in the low 6 bits of bytes 0-3 (scales) and 4-7 (minima); groups 4 to 7 have
    their low 4 bits in bytes 8-11 and their high 2 bits on top of bytes 0-7.
    """
    first, second, third = np.split(packed, 3, axis=-1)
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), axis=-1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), axis=-1)
    scale = _fp16(d).astype(np.float32)[:, :, None] * scales.astype(np.float32)
    minimum = _fp16(dmin).astype(np.float32)[:, :, None] * minima.astype(np.float32)
    rows = packed.shape[0]
    return scale.reshape(rows, -1), -minimum.reshape(rows, -1)


def _interleave_nibbles(nibbles: U8Array) -> U8Array:
    """From ggml's order to even inputs in low halves.

    A ggml byte j holds inputs j (low) and j + 16 (high) of its block; ours holds 2j and 2j + 1.
    Done on pairs of bytes, so that the nibbles are never unpacked to a byte each.
    """
    pairs = np.ascontiguousarray(nibbles).view("<u2")  # [rows, blocks, 8]: bytes 2j and 2j + 1
    first = (pairs & 0x000F) | ((pairs >> 4) & 0x00F0)
    second = ((pairs >> 4) & 0x000F) | ((pairs >> 8) & 0x00F0)
    halves = np.concatenate((first.astype(np.uint8), second.astype(np.uint8)), axis=-1)
    return halves.reshape(nibbles.shape[0], -1)
