"""`--quantization`: which weights are converted, and into what."""

from __future__ import annotations

import numpy as np
import pytest
from hasten.core.loading import LoadError
from hasten.core.loading.quantize import LoadTimeQuantization
from hasten.core.models import TensorSpec, WeightSpec
from hasten.core.models.weights import EMBED, LM_HEAD
from hasten.kernels.program import WeightName
from hasten.kernels.weights import (
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    Split,
    StackedWeight,
    Weight,
)

QKV, NORM = WeightName("layers.0.qkv"), WeightName("final_norm")


def spec(name: WeightName, *, quantizable: bool = False) -> WeightSpec:
    return WeightSpec(name, (TensorSpec(name, (4, 64)),), Split.REPLICATED, quantizable)


def dense(*shape: int) -> DenseWeight:
    return DenseWeight(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def weights(*, tied: bool) -> tuple[list[WeightSpec], dict[WeightName, Weight]]:
    found: dict[WeightName, Weight] = {EMBED: dense(8, 64), QKV: dense(12, 64), NORM: dense(64)}
    specs = [spec(EMBED), spec(QKV, quantizable=True), spec(NORM)]
    if not tied:
        specs.append(spec(LM_HEAD))
        found[LM_HEAD] = dense(8, 64)
    return specs, found


@pytest.mark.parametrize("tied", [True, False])
def test_linears_are_converted_and_nothing_else(tied: bool) -> None:
    specs, plain = weights(tied=tied)
    converted = LoadTimeQuantization("fp8").apply(specs, plain)
    assert isinstance(converted[QKV], Fp8Weight)
    assert all(converted[name] is plain[name] for name in plain if name != QKV)


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_too_when_asked(tied: bool) -> None:
    specs, plain = weights(tied=tied)
    converted = LoadTimeQuantization("int4", lm_head=True).apply(specs, plain)
    assert isinstance(converted[EMBED if tied else LM_HEAD], GroupedIntWeight)
    assert tied or converted[EMBED] is plain[EMBED]
    assert converted[NORM] is plain[NORM]


def test_what_is_stacked_of_unlike_schemes_becomes_one() -> None:
    specs, plain = weights(tied=True)
    mixed = StackedWeight((dense(8, 64), LoadTimeQuantization("int8").apply(specs, plain)[QKV]))  # type: ignore[arg-type]  # a matrix, as converted
    converted = LoadTimeQuantization("int4").apply(specs, plain | {QKV: mixed})
    assert isinstance(converted[QKV], GroupedIntWeight)
    assert converted[QKV].shape == (20, 64)


def test_errors_name_flag_and_weight() -> None:
    with pytest.raises(LoadError, match=r"--quantization int3 .* supported: fp8, int4, int8"):
        LoadTimeQuantization("int3")
    bad: dict[WeightName, Weight] = {QKV: dense(4, 48)}
    with pytest.raises(
        LoadError, match=r"--quantization int8: weight 'layers.0.qkv': groups of 32"
    ):
        LoadTimeQuantization("int8").apply([spec(QKV, quantizable=True)], bad)


def test_conversions_have_keys_of_their_own() -> None:
    keys = {
        LoadTimeQuantization(scheme, head).key
        for scheme in ("fp8", "int4", "int8")
        for head in (False, True)
    }
    assert len(keys) == 6
