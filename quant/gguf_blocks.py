"""GGUF block formats: kept packed where our schemes hold them without loss, else dequantised.

Q4_0, Q4_1 and Q8_0 store blocks of 32 inputs, each with its fp16 scale (and minimum) in front;
they become `GroupedIntWeight`s whose `dequantize` gives the numbers that the format defines. All
other types that the `gguf` package can dequantise become dense.
Source: block layouts of ggml (ggml-common.h, the `block_q4_0`, `block_q4_1`, `block_q8_0` structs).
Exercised by `pytest tests/unit/quant/test_gguf_blocks.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hasten.kernels.weights import DenseWeight, GroupedIntWeight
from ml_dtypes import bfloat16

BLOCK_LEN = 32

U8Array = npt.NDArray[np.uint8]

_PLAIN_DTYPES: dict[GGMLQuantizationType, npt.DTypeLike] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: bfloat16,
}


def decode(tensor_type: GGMLQuantizationType, raw: U8Array) -> DenseWeight | GroupedIntWeight:
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


def _dequantize(tensor_type: GGMLQuantizationType, raw: U8Array) -> npt.NDArray[np.float32]:
    try:
        values: npt.NDArray[np.float32] = dequantize(raw, tensor_type)
    except NotImplementedError as error:
        raise ValueError(f"type {tensor_type.name} is not supported") from error
    return values


def _unpack_q4_0(raw: U8Array) -> GroupedIntWeight:
    """The format means d (q - 8), so the offset is -8 d."""
    blocks = raw.reshape(raw.shape[0], -1, 2 + BLOCK_LEN // 2)
    scale = _fp16_column(blocks, 0)
    offset = scale.astype(np.float32) * np.float32(-8)
    if np.abs(offset).max(initial=0) <= np.finfo(np.float16).max:
        offset = offset.astype(np.float16)  # exact: multiplying by 8 only moves the exponent
    return GroupedIntWeight(4, BLOCK_LEN, _interleave_nibbles(blocks[:, :, 2:]), scale, offset)


def _unpack_q4_1(raw: U8Array) -> GroupedIntWeight:
    """The format means d q + m."""
    blocks = raw.reshape(raw.shape[0], -1, 4 + BLOCK_LEN // 2)
    nibbles = _interleave_nibbles(blocks[:, :, 4:])
    return GroupedIntWeight(4, BLOCK_LEN, nibbles, _fp16_column(blocks, 0), _fp16_column(blocks, 2))


def _unpack_q8_0(raw: U8Array) -> GroupedIntWeight:
    """The format means d q."""
    blocks = raw.reshape(raw.shape[0], -1, 2 + BLOCK_LEN)
    integers = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(raw.shape[0], -1)
    return GroupedIntWeight(8, BLOCK_LEN, integers, _fp16_column(blocks, 0), None)


_PACKED = {
    GGMLQuantizationType.Q4_0: _unpack_q4_0,
    GGMLQuantizationType.Q4_1: _unpack_q4_1,
    GGMLQuantizationType.Q8_0: _unpack_q8_0,
}


def _fp16_column(blocks: U8Array, at: int) -> npt.NDArray[np.float16]:
    """The fp16 number at byte `at` of each block, [rows, blocks]."""
    column = np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[:, :, 0]
    if not np.isfinite(column).all():
        raise ValueError("a block scale is not finite")
    return column


def _interleave_nibbles(nibbles: U8Array) -> U8Array:
    """From ggml's order to even inputs in low halves.

    A ggml byte j holds inputs j (low) and j + 16 (high) of its block; ours holds 2j and 2j + 1.
    """
    pairs = np.ascontiguousarray(nibbles).view("<u2")  # [rows, blocks, 8]: bytes 2j and 2j + 1
    first = (pairs & 0x000F) | ((pairs >> 4) & 0x00F0)
    second = ((pairs >> 4) & 0x000F) | ((pairs >> 8) & 0x00F0)
    halves = np.concatenate((first.astype(np.uint8), second.astype(np.uint8)), axis=-1)
    return halves.reshape(nibbles.shape[0], -1)
