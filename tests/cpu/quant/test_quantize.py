"""`hasten quantize` from end to end on a tiny model: written, read back, interrupted, resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.loading import LoadedModel, load_model
from hasten.core.models import weight_specs
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.core.options import ConfigurationError
from hasten.core.quantize import QuantizeOptions, cut_sequences, quantize_model
from hasten.core.quantize.plan import make_plan
from hasten.kernels.backend import get_backend
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    F32Array,
    Fp8Weight,
    GroupedIntWeight,
)
from hasten.quant.report import LayerReport

from tests.helpers.gguf_files import TinyGGUF, write_gguf

SCHEMES = ["int4-awq", "int4-gptq", "int4-rtn", "int8", "fp8"]
IDS = np.random.default_rng(5).integers(0, 90, (6, 32)).astype(np.int32)


class PowerCutError(Exception):
    """Stands for a power cut."""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TinyGGUF())
    return str(path)


def options(scheme: str, **changes: str) -> QuantizeOptions:
    wanted = QuantizeOptions(scheme=scheme, num_sequences=len(IDS), sequence_len=32)
    return replace(wanted, **changes)  # type: ignore[arg-type]  # options are strings here


def hidden_after(model: LoadedModel, ids: npt.NDArray[np.int32]) -> F32Array:
    decoder = CalibratableDecoder(model, get_backend("reference"), ids.shape[1])
    hidden = decoder.embed(ids)
    for layer_idx in range(decoder.num_layers):
        hidden = decoder.run_layer(layer_idx, decoder.weights(layer_idx), hidden).hidden
    return hidden


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_was_written_is_read(source: str, tmp_path: Path, scheme: str) -> None:
    out = tmp_path / "out"
    report = quantize_model(source, out, options(scheme), IDS)
    model, before = load_model(str(out)), load_model(source)
    assert model.config == replace(before.config, family=model.config.family)
    kind = Fp8Weight if scheme == "fp8" else GroupedIntWeight
    for spec in weight_specs(model.config):
        weight = model.weights[spec.name]
        assert isinstance(weight, kind if spec.quantizable else DenseWeight)
        assert weight.shape == before.weights[spec.name].shape
    exact, got = hidden_after(before, IDS), hidden_after(model, IDS)
    bound = {"fp8": 0.08, "int8": 0.02}.get(scheme, 0.3)
    assert np.linalg.norm(got - exact) < bound * np.linalg.norm(exact)
    assert len(report.layers) == model.config.num_layers
    assert 0 < report.layers[0].relative_error < bound
    assert report.quantized_bytes < report.bf16_bytes


@pytest.mark.parametrize("scheme", ["int4-awq", "int4-gptq", "fp8"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    source: str, tmp_path: Path, scheme: str
) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    quantize_model(source, whole, options(scheme), IDS)

    def pull_the_plug(layer: LayerReport) -> None:
        raise PowerCutError(layer.layer_idx)

    with pytest.raises(PowerCutError):
        quantize_model(source, halved, options(scheme), IDS, pull_the_plug)
    assert (halved / "layer-00000.safetensors").exists()
    seen: list[int] = []
    quantize_model(source, halved, options(scheme), IDS, lambda layer: seen.append(layer.layer_idx))
    assert seen == list(range(len(seen)))
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in halved.iterdir()} == names
    for name in names - {"quantize_report.json", "quantize_report.svg"}:
        assert (halved / name).read_bytes() == (whole / name).read_bytes(), name
    assert not any(name.startswith("quantize_state") for name in names)


def test_a_run_with_other_options_is_not_mixed_in(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pull_the_plug(_: LayerReport) -> None:
        raise PowerCutError

    with pytest.raises(PowerCutError):
        quantize_model(source, out, options("int8"), IDS, pull_the_plug)
    with pytest.raises(ConfigurationError, match="unfinished run with other options"):
        quantize_model(source, out, options("int4-rtn"), IDS)
    quantize_model(source, out, options("int8"), IDS)
    with pytest.raises(ConfigurationError, match="holds a finished model"):
        quantize_model(source, out, options("int8"), IDS)


def test_static_activations_and_cache_scales(source: str, tmp_path: Path) -> None:
    wanted = options("fp8", activations="static", kv_cache="fp8-static")
    report = quantize_model(source, tmp_path / "out", wanted, IDS)
    model = load_model(str(tmp_path / "out"))
    weights = [weight for weight in model.weights.values() if isinstance(weight, Fp8Weight)]
    assert all(weight.activations is ActivationScheme.STATIC for weight in weights)
    assert set(model.kv_scales) == set(range(model.config.num_layers))
    for layer in report.layers:
        k, v = model.kv_scales[layer.layer_idx]
        assert k == pytest.approx(layer.largest_k / 448, rel=2**-8)
        assert v == pytest.approx(layer.largest_v / 448, rel=2**-8)


def test_written_directories_name_their_parts(source: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize_model(source, out, options("int4-awq"), IDS)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in out.glob("*.safetensors")}
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq"
    assert (out / "quantize_report.svg").read_text().startswith("<svg")
    assert len(json.loads((out / "quantize_report.json").read_text())["layers"]) > 1


def test_options_that_contradict_are_refused() -> None:
    for changes, message in (
        ({"scheme": "int3"}, "--scheme must be one of int4-awq"),
        ({"activations": "static"}, "goes with --scheme fp8 only"),
        ({"scheme": "fp8", "group_size": 64}, "goes with integer schemes only"),
        ({"kv_cache": "fp8"}, "--kv-cache must be one of fp8-static"),
        ({"num_sequences": 0}, "--num-sequences must be at least 1"),
        ({"sequence_len": 8}, "--sequence-len must be at least 16"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            QuantizeOptions(**changes)


def test_models_that_a_format_cannot_hold_are_refused(source: str) -> None:
    config = load_model(source).config
    with pytest.raises(ConfigurationError, match=r"does not divide .* possible: 32"):
        make_plan(QuantizeOptions(group_size=48), config)
    with pytest.raises(ConfigurationError, match="no group size"):
        make_plan(QuantizeOptions(), replace(config, hidden_size=40))
    with pytest.raises(ConfigurationError, match="AutoAWQ's format holds no cache scales"):
        make_plan(QuantizeOptions(kv_cache="fp8-static"), config)


def test_sequences_are_spread_over_a_text() -> None:
    wanted = QuantizeOptions(num_sequences=3, sequence_len=16)
    cut = cut_sequences(range(100), wanted)
    assert cut.shape == (3, 16)
    assert cut[0, 0] == 0
    assert cut[-1, -1] == 99
    with pytest.raises(ConfigurationError, match="has 40 tokens; 3 sequences of 16 need 48"):
        cut_sequences(range(40), wanted)
