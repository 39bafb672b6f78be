"""Layers that an fp8 cache would ruin are found before anything is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hasten.core.loading import LoadedModel
from hasten.core.models.kv_probe import MAX_RELATIVE_ERROR, KVProbe, probe_kv
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight

from tests.helpers.random_models import random_model, tiny_config

IDS = np.random.default_rng(1).integers(0, 60, 200).tolist()


def probe(model: LoadedModel) -> KVProbe:
    program = model.build_program(DType.F32, DType.F32)
    wanted = model.kv_format(DType.FP8_E4M3)
    return probe_kv(program, model.weights, get_backend("reference"), IDS, wanted)


def with_huge_scores(model: LoadedModel, layer_idx: int) -> LoadedModel:
    """Queries so long that attention hangs on the last bits of the keys."""
    name = WeightName(f"layers.{layer_idx}.qkv")
    qkv = model.weights[name].dequantize().copy()
    qkv[: model.config.q_width] *= 3000
    return replace(model, weights={**model.weights, name: DenseWeight(qkv)})


def test_sound_layers_keep_fp8() -> None:
    model = random_model(tiny_config())
    found = probe(model)
    assert all(0.001 < error < MAX_RELATIVE_ERROR for error in found.errors)
    wanted = model.kv_format(DType.FP8_E4M3)
    assert found.format(wanted, DType.BF16) == wanted
    assert len(found.lines()) == 1


def test_a_layer_that_errs_falls_back_alone_and_is_named() -> None:
    model = with_huge_scores(random_model(tiny_config()), 1)
    found = probe(model)
    assert found.errors[1] > MAX_RELATIVE_ERROR
    kv_format = found.format(model.kv_format(DType.FP8_E4M3), DType.BF16)
    expected = [DType.FP8_E4M3] * model.config.num_layers
    expected[1] = DType.BF16
    assert list(kv_format.dtypes) == expected
    assert any("layer 1 keeps a plain KV cache" in line for line in found.lines())


def test_static_scales_are_probed_as_they_will_be_used() -> None:
    model = random_model(tiny_config())
    clamped = replace(model, kv_scales={0: (1e-5, 1e-5)})
    errors = probe(clamped).errors
    assert errors[0] > MAX_RELATIVE_ERROR
    assert errors[1:] == probe(model).errors[1:]
