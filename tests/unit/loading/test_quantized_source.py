"""Quantised checkpoints look like plain ones to the rest of loading."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hasten.core.loading import LoadError, load_model
from hasten.core.loading.quantized_source import QuantizedSource
from hasten.core.loading.safetensors_files import open_safetensors
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight, Fp8Weight, GroupedIntWeight
from safetensors.numpy import save_file

CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
CHECKPOINTS = Path(os.environ.get("HASTEN_DATA", Path(__file__).parents[4] / "shared")) / (
    "checkpoints"
)
needs_checkpoints = pytest.mark.skipif(
    not CHECKPOINTS.is_dir(), reason="HASTEN_DATA holds no checkpoints written by other tools"
)


def write(folder: Path, **changes: Any) -> None:
    tensors = {
        "norm.weight": np.ones(64, np.float32),
        "a.qweight": np.zeros((8, 16), np.int32),
        "a.qzeros": np.full((2, 2), 0x77777777, np.int32),
        "a.scales": np.ones((2, 16), np.float16),
        **changes,
    }
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")


def test_a_quantised_linear_is_one_matrix(tmp_path: Path) -> None:
    write(tmp_path)
    source = QuantizedSource(open_safetensors(tmp_path), CONFIG)
    assert source.shapes() == {"norm.weight": (64,), "a.weight": (16, 64)}
    assert isinstance(source.read("norm.weight"), DenseWeight)
    weight = source.read("a.weight")
    assert isinstance(weight, GroupedIntWeight)
    np.testing.assert_array_equal(weight.dequantize(), np.full((16, 64), -8, np.float32))
    assert source.local_name("a.weight") == "a.qweight"
    assert source.local_name("norm.weight") == "norm.weight"


def test_errors_name_the_folder(tmp_path: Path) -> None:
    write(tmp_path, **{"a.scales": None})
    source = QuantizedSource(open_safetensors(tmp_path), CONFIG)
    with pytest.raises(LoadError, match=rf"{tmp_path}: tensor 'a.scales' is missing"):
        source.read("a.weight")
    with pytest.raises(LoadError, match=rf"{tmp_path}: quantization_config.bits: 3"):
        QuantizedSource(open_safetensors(tmp_path), {**CONFIG, "bits": 3})


@needs_checkpoints
@pytest.mark.parametrize(
    ("folder", "scheme"),
    [
        ("awq", GroupedIntWeight),
        ("awq-gptqmodel", GroupedIntWeight),
        ("gptq", GroupedIntWeight),
        ("w4a16", GroupedIntWeight),
        ("w4a16-asym-rtn", GroupedIntWeight),
        ("ct-awq-asym", GroupedIntWeight),
        ("fp8-dynamic", Fp8Weight),
        ("fp8-static-kv", Fp8Weight),
        ("fp8-block", Fp8Weight),
    ],
)
def test_models_of_other_tools_load(folder: str, scheme: type) -> None:
    model = load_model(str(CHECKPOINTS / folder))
    for name in ("qkv", "o", "gate_up", "down"):
        assert isinstance(model.weights[WeightName(f"layers.0.{name}")], scheme)
    assert isinstance(model.weights[WeightName("embed")], DenseWeight)


@needs_checkpoints
def test_an_unknown_configuration_stops_loading(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "awq", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["group_szie"] = 64
    path.chmod(0o644)
    path.write_text(json.dumps(config))
    with pytest.raises(LoadError, match="group_szie: is not known; did you mean 'group_size'"):
        load_model(str(tmp_path / "model"))
