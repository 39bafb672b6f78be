"""Integer formats against packers written here, one code at a time, from their descriptions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels.weights import GroupedIntWeight
from hasten.quant.formats import (
    AwqFormat,
    CompressedTensorsFormat,
    FormatError,
    GptqFormat,
    recognise,
)
from hasten.quant.integers import pack_words, unpack_words
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

RNG = np.random.default_rng(8)
Array = npt.NDArray[Any]
OUT, IN, GROUP = 24, 128, 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": True}


def pack_naively(codes: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Words [rows, n] from codes [rows, n * 32 / bits], bit by bit."""
    per_word = 32 // bits
    places = order or tuple(range(per_word))
    rows, columns = codes.shape
    words = np.zeros((rows, -(-columns // per_word)), np.uint32)
    for row in range(rows):
        for word in range(words.shape[1]):
            for i, place in enumerate(places):
                column = per_word * word + place
                if column < columns:
                    words[row, word] |= np.uint32(int(codes[row, column]) << (bits * i))
    return words.view(np.int32)


def draw(bits: int = 4) -> tuple[Array, Array, Array]:
    """Codes [out, in], zero points and fp16 scales [out, groups]."""
    codes = RNG.integers(0, 1 << bits, (OUT, IN))
    zeros = RNG.integers(1, 1 << bits, (OUT, IN // GROUP))
    scales = (0.01 + RNG.random((OUT, IN // GROUP))).astype(np.float16)
    return codes, zeros, scales


def meaning(codes: Array, zeros: Array, scales: Array, g_idx: Array | None = None) -> Array:
    index = np.arange(IN) // GROUP if g_idx is None else g_idx
    wide = scales.astype(np.float64)[:, index]
    return ((codes - zeros[:, index]) * wide).astype(np.float32)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 40))))
def test_packing_inverts_unpacking(codes: npt.NDArray[np.uint8]) -> None:
    width = codes.shape[1]
    for bits, order in ((8, None), (4, None), (4, AWQ_ORDER)):
        fitting = codes & np.uint8((1 << bits) - 1)
        packed = pack_words(fitting, bits, order) if order else pack_words(fitting, bits)
        np.testing.assert_array_equal(packed, pack_naively(fitting, bits, order))
        unpacked = unpack_words(packed, bits, order) if order else unpack_words(packed, bits)
        np.testing.assert_array_equal(unpacked[:, :width], fitting)


def test_awq_gemm() -> None:
    codes, zeros, scales = draw()
    tensors = {
        "m.qweight": pack_naively(codes.T, 4, AWQ_ORDER),
        "m.qzeros": pack_naively(zeros.T, 4, AWQ_ORDER),
        "m.scales": scales.T,
    }
    found = recognise({**AWQ, "version": "gemm"})
    assert found.linears(tensors) == {"m": ("m.qweight", "m.qzeros", "m.scales")}
    assert found.shape(tensors, "m") == (OUT, IN)
    np.testing.assert_array_equal(
        found.read(tensors, "m").dequantize(), meaning(codes, zeros, scales)
    )


@pytest.mark.parametrize(("group", "width"), [(32, 4), (64, 2), (128, 1)])
def test_awq_gemv_pads_its_groups(group: int, width: int) -> None:
    codes = RNG.integers(0, 16, (OUT, IN))
    zeros = RNG.integers(0, 16, (OUT, IN // group))
    scales = RNG.random((OUT, IN // group)).astype(np.float16)
    padded_zeros, padded_scales = np.zeros((OUT, 8 * width), int), np.zeros((OUT, 8 * width))
    padded_zeros[:, : IN // group], padded_scales[:, : IN // group] = zeros, scales
    tensors = {
        "m.qweight": pack_naively(codes, 4),
        "m.qzeros": pack_naively(padded_zeros, 4),
        "m.scales": padded_scales.astype(np.float16),
    }
    found = recognise({**AWQ, "version": "gemv", "group_size": group})
    assert isinstance(found, AwqFormat)
    weight = found.read(tensors, "m")
    index = np.arange(IN) // group
    expected = (codes - zeros[:, index]) * scales.astype(np.float64)[:, index]
    np.testing.assert_array_equal(weight.dequantize(), expected.astype(np.float32))
    for name, array in found.write("m", weight).items():
        assert array.tobytes() == tensors[name].tobytes()


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq(version: str, bits: int, act_order: bool) -> None:
    codes, zeros, scales = draw(bits)
    g_idx = np.arange(IN, dtype=np.int32) // GROUP
    if act_order:
        g_idx = RNG.permutation(g_idx)
    stored_zeros = zeros - 1 if version == "gptq" else zeros
    tensors = {
        "m.qweight": pack_naively(codes.T.T, bits).T,
        "m.qzeros": pack_naively(stored_zeros.T, bits),
        "m.scales": scales.T,
        "m.g_idx": g_idx,
    }
    found = recognise({**GPTQ, "bits": bits, "checkpoint_format": version})
    assert isinstance(found, GptqFormat)
    weight = found.read(tensors, "m")
    assert (weight.g_idx is not None) == act_order
    np.testing.assert_array_equal(weight.dequantize(), meaning(codes, zeros, scales, g_idx))
    for name, array in found.write("m", weight).items():
        assert array.tobytes() == np.ascontiguousarray(tensors[name]).tobytes()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("order", [None, "static", "group"])
def test_compressed_tensors_packed(bits: int, symmetric: bool, order: str | None) -> None:
    codes, zeros, scales = draw(bits)
    tensors: dict[str, Array] = {
        "m.weight_packed": pack_naively(codes, bits),
        "m.weight_scale": scales,
        "m.weight_shape": np.array([OUT, IN]),
    }
    if symmetric:
        zeros[:] = 1 << (bits - 1)
    else:
        tensors["m.weight_zero_point"] = pack_naively(zeros.T, bits).T
    g_idx = RNG.permutation(np.arange(IN, dtype=np.int32) // GROUP) if order == "group" else None
    if g_idx is not None:
        tensors["m.weight_g_idx"] = g_idx
    found = recognise(compressed_config(bits=bits, symmetric=symmetric, actorder=order))
    assert isinstance(found, CompressedTensorsFormat)
    assert set(found.linears(tensors)["m"]) == set(tensors)
    weight = found.read(tensors, "m")
    np.testing.assert_array_equal(weight.dequantize(), meaning(codes, zeros, scales, g_idx))
    for name, array in found.write("m", weight).items():
        np.testing.assert_array_equal(array, tensors[name])


def compressed_config(**changes: Any) -> dict[str, Any]:
    bits = changes.pop("bits", 4)
    weights = {
        "type": "int",
        "num_bits": bits,
        "strategy": "group",
        "group_size": GROUP,
        "symmetric": True,
        "dynamic": False,
        **changes,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def test_channel_strategy_is_one_group_per_row() -> None:
    codes = RNG.integers(0, 16, (OUT, IN))
    scales = RNG.random((OUT, 1)).astype(np.float16)
    tensors: dict[str, Array] = {
        "m.weight_packed": pack_naively(codes, 4),
        "m.weight_scale": scales,
        "m.weight_shape": np.array([OUT, IN]),
    }
    weight = recognise(compressed_config(strategy="channel", group_size=None)).read(tensors, "m")
    assert isinstance(weight, GroupedIntWeight)
    assert weight.group_size == IN
    expected = (codes - 8) * scales.astype(np.float64)
    np.testing.assert_array_equal(weight.dequantize(), expected.astype(np.float32))


def test_groups_that_do_not_divide_name_those_that_do() -> None:
    tensors = {"m.qweight": np.zeros((576, 8), np.int32)}
    found = recognise({**AWQ, "version": "gemm", "group_size": 128})
    with pytest.raises(FormatError, match=r"group_size: 128.*576 inputs of m.*32, 64, -1"):
        found.read(tensors, "m")


def test_gptq_modules_may_have_settings_of_their_own() -> None:
    codes, _, _ = draw(8)
    scales = RNG.random((OUT, 2)).astype(np.float16)
    tensors = {
        "layers.1.down.qweight": np.ascontiguousarray(pack_naively(codes, 8).T),
        "layers.1.down.qzeros": pack_naively(np.full((2, OUT), 127), 8),
        "layers.1.down.scales": scales.T,
    }
    dynamic = {r"+:.*\.down": {"bits": 8, "group_size": 64}, r"-:.*\.up": {}}
    found = recognise({**GPTQ, "sym": True, "dynamic": dynamic})
    weight = found.read(tensors, "layers.1.down")
    assert isinstance(weight, GroupedIntWeight)
    assert (weight.bits, weight.group_size, weight.offset) == (8, 64, None)
    with pytest.raises(FormatError, match=r"dynamic leaves layers.1.up plain"):
        found.shape({"layers.1.up.qweight": np.zeros((1, 1), np.int32)}, "layers.1.up")


def test_mixed_schemes_by_name_pattern_and_class() -> None:
    config = compressed_config()
    config["format"] = "mixed-precision"
    fp8 = {"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True}
    config["config_groups"] = {
        "a": {"format": "float-quantized", "targets": ["re:.*down"], "weights": fp8},
        "b": {**config["config_groups"]["group_0"], "format": "pack-quantized"},
    }
    found = recognise(config)
    assert isinstance(found, CompressedTensorsFormat)
    assert type(found.scheme("layers.0.down")).__name__ == "Fp8Scheme"
    assert type(found.scheme("layers.0.up")).__name__ == "IntScheme"
    assert found.scheme("lm_head") is None
