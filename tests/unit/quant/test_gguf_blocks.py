"""GGUF block types against the `gguf` package's own dequantisation, number for number."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hasten.kernels.weights import DenseWeight, GroupedIntWeight
from hasten.quant.ggml_types import GGMLType
from hasten.quant.gguf_blocks import decode

SMALL_BLOCKS = {
    GGMLQuantizationType.Q4_0: 4,
    GGMLQuantizationType.Q4_1: 4,
    GGMLQuantizationType.Q5_0: 8,
    GGMLQuantizationType.Q5_1: 8,
    GGMLQuantizationType.Q8_0: 8,
}
"""Type and the bits we keep it in; fp16 scales."""
SUPER_BLOCKS = {
    GGMLQuantizationType.Q4_K: (4, 32, (0, 2)),
    GGMLQuantizationType.Q5_K: (8, 32, (0, 2)),
    GGMLQuantizationType.Q6_K: (8, 16, (208,)),
}
"""Type, the bits and group size we keep it in, and where its blocks hold fp16 numbers."""
PACKED = [*SMALL_BLOCKS, *SUPER_BLOCKS]
PLAIN = [GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16]
OTHERS = [kind for kind in gguf.quants._type_traits if kind not in PACKED and kind not in PLAIN]
"""Everything else that the package knows how to dequantise."""


def random_blocks(tensor_type: GGMLQuantizationType, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Five rows of three blocks."""
    random = np.random.default_rng(seed)
    if tensor_type in SMALL_BLOCKS or tensor_type in PLAIN:
        values = random.standard_normal((5, 3 * 32)).astype(np.float32)
        packed: npt.NDArray[np.uint8] = quantize(values, tensor_type).view(np.uint8)
        return packed
    _, block_bytes = GGML_QUANT_SIZES[tensor_type]
    if tensor_type not in SUPER_BLOCKS:
        # Small bytes keep every fp16 that they may form finite.
        return random.integers(0, 0x3C, (5, 3 * block_bytes)).astype(np.uint8)
    blocks = random.integers(0, 256, (5, 3, block_bytes)).astype(np.uint8)
    for at in SUPER_BLOCKS[tensor_type][2]:
        scales = random.standard_normal((5, 3, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(5, -1)


def test_types_are_those_of_the_gguf_package() -> None:
    own = {(kind.name, kind.value, (kind.block_len, kind.block_bytes)) for kind in GGMLType}
    assert own == {(kind.name, kind.value, sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


@pytest.mark.parametrize("tensor_type", [*PACKED, *PLAIN, *OTHERS])
def test_numbers_are_those_that_the_format_defines(tensor_type: GGMLQuantizationType) -> None:
    raw = random_blocks(tensor_type)
    expected = dequantize(raw, tensor_type)
    assert np.isfinite(expected).all()
    weight = decode(GGMLType(tensor_type), raw)
    assert weight.shape == expected.shape
    assert np.array_equal(weight.dequantize(), expected)


@pytest.mark.parametrize(("tensor_type", "bits"), SMALL_BLOCKS.items())
def test_small_blocks_stay_packed(tensor_type: GGMLQuantizationType, bits: int) -> None:
    weight = decode(GGMLType(tensor_type), random_blocks(tensor_type))
    assert isinstance(weight, GroupedIntWeight)
    assert (weight.bits, weight.group_size) == (bits, 32)
    assert weight.scale.dtype == np.float16


@pytest.mark.parametrize(("tensor_type", "kept"), SUPER_BLOCKS.items())
def test_super_blocks_stay_packed(
    tensor_type: GGMLQuantizationType, kept: tuple[int, int, tuple[int, ...]]
) -> None:
    weight = decode(GGMLType(tensor_type), random_blocks(tensor_type))
    assert isinstance(weight, GroupedIntWeight)
    assert (weight.bits, weight.group_size) == kept[:2]
    assert weight.scale.dtype == np.float32


@pytest.mark.parametrize("tensor_type", PLAIN)
def test_plain_types_are_views(tensor_type: GGMLQuantizationType) -> None:
    raw = random_blocks(tensor_type)
    weight = decode(GGMLType(tensor_type), raw)
    assert isinstance(weight, DenseWeight)
    assert np.shares_memory(weight.data, raw)


def test_even_inputs_are_in_low_halves() -> None:
    scale = np.float16(1).view(np.uint16)
    nibbles = np.arange(16, dtype=np.uint8) % 8 | ((15 - np.arange(16, dtype=np.uint8)) << 4)
    raw = np.concatenate([np.array([scale], "<u2").view(np.uint8), nibbles])[None, :]
    weight = decode(GGMLType.Q4_0, raw)
    assert isinstance(weight, GroupedIntWeight)
    stored = [*(nibbles & 15), *(nibbles >> 4)]
    assert weight.integers().tolist() == [stored]


def test_an_offset_beyond_fp16_is_kept_in_fp32() -> None:
    raw = np.zeros((1, 18), np.uint8)
    raw[0, :2] = np.array([60000], np.float16).view(np.uint8)
    weight = decode(GGMLType.Q4_0, raw)
    assert isinstance(weight, GroupedIntWeight)
    assert weight.offset is not None
    assert weight.offset.dtype == weight.scale.dtype == np.float32
    assert np.array_equal(weight.dequantize(), dequantize(raw, GGMLQuantizationType.Q4_0))


@pytest.mark.parametrize("tensor_type", PACKED)
def test_scales_that_are_not_finite_are_refused(tensor_type: GGMLQuantizationType) -> None:
    raw = random_blocks(tensor_type).copy()
    at = SUPER_BLOCKS[tensor_type][2][0] if tensor_type in SUPER_BLOCKS else 0
    raw[3, at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="not finite"):
        decode(GGMLType(tensor_type), raw)


def test_many_types_are_covered() -> None:
    assert len(OTHERS) >= 14


def test_types_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="type I8 is not supported"):
        decode(GGMLType.I8, np.zeros((1, 32), np.uint8))
