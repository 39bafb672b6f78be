"""Configurations that are unknown, contradictory or contradicted by the tensors are refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hasten.kernels.weights import ActivationScheme, Fp8Weight
from hasten.quant.formats import FormatError, recognise

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CT_WEIGHTS = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True}
CT_GROUP = {"targets": ["Linear"], "weights": CT_WEIGHTS}
CT = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": CT_GROUP},
}


def ct(weights: dict[str, Any] | None = None, **group: Any) -> dict[str, Any]:
    changed = {**CT_GROUP, "weights": {**CT_WEIGHTS, **(weights or {})}, **group}
    return {**CT, "config_groups": {"group_0": changed}}


INT = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": True}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "quant_method: None is not supported; supported: awq, gptq"),
        ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes'"),
        ({**AWQ, "bits": 3}, "bits: 3 is not supported; supported: 4"),
        ({**AWQ, "bits": True}, "bits: True is not supported"),
        ({**AWQ, "version": "marlin"}, "version: 'marlin'"),
        ({**AWQ, "format": "gemv"}, "version: contradicts itself"),
        ({**AWQ, "zero_pont": True}, "zero_pont: is not known; did you mean 'zero_point'"),
        ({**AWQ, "desc_act": True}, "desc_act: True"),
        ({**AWQ, "group_size": "64"}, "group_size: must be int, got '64'"),
        ({**AWQ, "zero_point": None}, "zero_point: is missing"),
        ({**GPTQ, "bits": 2}, "bits: 2"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format: 'marlin'"),
        ({**GPTQ, "checkpoint_format": "gptq", "format": "gptq_v2"}, "checkpoint_format: contra"),
        ({**GPTQ, "is_marlin_format": True}, "is_marlin_format: True"),
        ({**GPTQ, "dynamic": {".*": {"bits": 3}}}, r"dynamic\..\*\.bits: 3"),
        ({**GPTQ, "dynamic": {".*": {"rank": 3}}}, "rank: is not known"),
        ({**FP8, "weight_block_size": [64, 64]}, "weight_block_size: "),
        ({**FP8, "activation_scheme": "static"}, "activation_scheme: static contradicts"),
        ({**FP8, "scale_fmt": "ue8m0"}, "scale_fmt: 'ue8m0'"),
        ({**FP8, "fmt": "e5m2"}, "fmt: 'e5m2'"),
        ({**CT, "config_groups": None}, "config_groups: is missing"),
        ({**CT, "format": "int-quantized"}, "format: 'int-quantized'"),
        ({**CT, "sparsity_config": {"format": "sparse-24"}}, "sparsity_config: "),
        ({**CT, "transform_config": {"a": 1}}, "transform_config: "),
        ({**CT, "kv_cache_scheme": {"type": "int"}}, "kv_cache_scheme.type: 'int'"),
        (ct({"num_bits": 4}), "group_0.weights.num_bits: 4"),
        (ct({"symmetric": False}), "weights.symmetric: False"),
        (ct({"strategy": "group"}), "weights.strategy: 'group'"),
        (ct({"dynamic": True}), "weights.dynamic: True"),
        (ct({"strategy": "block", "block_structure": [64, 64]}), "block_structure"),
        (ct(output_activations={}), "output_activations: {}"),
        (ct(input_activations={**CT_WEIGHTS, "dynamic": True}), "input_activations.strategy"),
        (ct(input_activations={**CT_WEIGHTS, "num_bits": 4}), "input_activations.num_bits: 4"),
        (ct(colour="red"), "group_0.colour: is not known"),
        (
            {**CT, "format": "pack-quantized", "config_groups": {"g": {**CT_GROUP, "weights": INT,
             "input_activations": CT_WEIGHTS}}},
            "input_activations",
        ),
        (
            {**CT, "format": "pack-quantized",
             "config_groups": {"g": {**CT_GROUP, "weights": {**INT, "strategy": "channel"}}}},
            "group_size: 64 contradicts strategy 'channel'",
        ),
    ],
)  # fmt: skip
def test_refused_with_the_fields_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        recognise(config)


def packed(zero_word: int = 0x77777777) -> dict[str, np.ndarray[Any, Any]]:
    return {
        "m.qweight": np.zeros((8, 16), np.int32),
        "m.qzeros": np.full((1, 2), zero_word, np.int32),
        "m.scales": np.ones((1, 16), np.float16),
    }


def test_symmetric_claims_are_checked_against_the_zero_points() -> None:
    assert recognise(GPTQ).read(packed(), "m").shape == (16, 64)
    with pytest.raises(FormatError, match=r"sym: true, but m.qzeros"):
        recognise(GPTQ).read(packed(0x77777776), "m")
    awq: dict[str, np.ndarray[Any, Any]] = {
        "m.qweight": np.zeros((64, 2), np.int32),
        "m.qzeros": np.zeros((1, 2), np.int32),
        "m.scales": np.ones((1, 16), np.float16),
    }
    with pytest.raises(FormatError, match=r"zero_point: false, but m.qzeros"):
        recognise({**AWQ, "zero_point": False}).read(awq, "m")


def test_act_order_claims_are_checked_against_g_idx() -> None:
    tensors = packed()
    tensors["m.qzeros"] = np.full((2, 2), 0x77777777, np.int32)
    tensors["m.scales"] = np.ones((2, 16), np.float16)
    tensors["m.g_idx"] = np.arange(64, dtype=np.int32) % 2
    config = {**GPTQ, "group_size": 32}
    with pytest.raises(FormatError, match=r"desc_act: false, but m.g_idx"):
        recognise(config).read(tensors, "m")
    assert recognise({**config, "desc_act": True}).read(tensors, "m").shape == (16, 64)
    tensors["m.g_idx"] = np.full(64, 2, np.int32)
    with pytest.raises(FormatError, match=r"outside 0 .. 1"):
        recognise({**config, "desc_act": True}).read(tensors, "m")


def test_missing_and_misshapen_tensors_are_named() -> None:
    tensors = packed()
    del tensors["m.scales"]
    with pytest.raises(FormatError, match=r"'m.scales' is missing"):
        recognise(GPTQ).read(tensors, "m")
    tensors["m.scales"] = np.ones((2, 16), np.float16)
    with pytest.raises(FormatError, match=r"'m.scales' has shape \(2, 16\), not \(1, 16\)"):
        recognise(GPTQ).read(tensors, "m")


def test_a_plain_weight_beside_a_packed_one_is_refused() -> None:
    tensors = {**packed(), "m.weight": np.ones((16, 64), np.float32)}
    with pytest.raises(FormatError, match="both a 'qweight' and a plain 'weight'"):
        recognise(GPTQ).linears(tensors)


E4M3 = ml_dtypes.float8_e4m3fn


def fp8_tensors(out: int, width: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"m.weight": np.ones((out, width)).astype(E4M3)}


def test_hugging_face_blocks() -> None:
    tensors = fp8_tensors(130, 200)
    tensors["m.weight_scale_inv"] = np.array([[1, 2], [3, 4]], np.float32)
    found = recognise(FP8)
    assert found.linears(tensors) == {"m": ("m.weight", "m.weight_scale_inv")}
    weight = found.read(tensors, "m")
    assert isinstance(weight, Fp8Weight)
    assert weight.activations is ActivationScheme.TOKEN_GROUP
    assert weight.dequantize()[129, 199] == 4
    with pytest.raises(FormatError, match="names m, but its weight is fp8"):
        recognise({**FP8, "modules_to_not_convert": ["m"]}).linears(tensors)


@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_hugging_face_per_tensor(scheme: str) -> None:
    tensors = fp8_tensors(4, 8)
    tensors["m.weight_scale"] = np.asarray(0.5, np.float32)
    tensors["m.input_scale"] = np.asarray(0.25, np.float32)
    found = recognise({"quant_method": "fp8", "activation_scheme": scheme})
    weight = found.read(tensors, "m")
    assert isinstance(weight, Fp8Weight)
    assert weight.block == (4, 8)
    assert weight.input_scale == (0.25 if scheme == "static" else None)
    np.testing.assert_array_equal(weight.dequantize(), np.full((4, 8), 0.5, np.float32))


def test_scales_must_be_positive_numbers() -> None:
    tensors = fp8_tensors(4, 8)
    for value in (0.0, -1.0, float("nan"), float("inf")):
        tensors["m.weight_scale"] = np.asarray(value, np.float32)
        with pytest.raises(FormatError, match="not a positive number"):
            recognise({"quant_method": "fp8", "activation_scheme": "dynamic"}).read(tensors, "m")


def test_ignored_modules_may_not_be_quantised() -> None:
    tensors = fp8_tensors(4, 8)
    with pytest.raises(FormatError, match="ignore: leaves m plain"):
        recognise({**CT, "ignore": ["re:m$"]}).linears(tensors)


def test_static_activations_and_input_scales_belong_together() -> None:
    tensors = fp8_tensors(4, 8)
    tensors["m.weight_scale"] = np.ones(1, np.float32)
    static = ct(input_activations=dict(CT_WEIGHTS))
    with pytest.raises(FormatError, match=r"contradict m.input_scale"):
        recognise(static).read(tensors, "m")
    tensors["m.input_scale"] = np.ones(1, np.float32)
    assert recognise(static).read(tensors, "m").shape == (4, 8)
    with pytest.raises(FormatError, match=r"contradict m.input_scale"):
        recognise(CT).read(tensors, "m")


def test_cache_scales_come_with_their_scheme_and_in_pairs() -> None:
    kv = {"a.k_scale": np.ones(1, np.float32), "a.v_scale": np.full(1, 2, np.float32)}
    with_scheme = {**CT, "kv_cache_scheme": dict(CT_WEIGHTS)}
    assert recognise(with_scheme).kv_scales(kv)["a"].v == 2
    with pytest.raises(FormatError, match="kv_cache_scheme: contradicts"):
        recognise(CT).kv_scales(kv)
    with pytest.raises(FormatError, match="kv_cache_scheme: contradicts"):
        recognise(with_scheme).kv_scales({})
    del kv["a.v_scale"]
    with pytest.raises(FormatError, match=r"'a.v_scale' is missing"):
        recognise(with_scheme).kv_scales(kv)
