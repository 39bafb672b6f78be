"""Checkpoints written by other tools, against what those tools dequantise to.

The folders and their layouts are described in `checkpoints/README.md` of the data folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels.weights import ActivationScheme, Fp8Weight, GroupedIntWeight
from hasten.quant.formats import (
    AwqFormat,
    CompressedTensorsFormat,
    GptqFormat,
    QuantFormat,
    recognise,
)
from safetensors import deserialize

DATA = Path(os.environ.get("HASTEN_DATA", Path(__file__).parents[4] / "shared")) / "checkpoints"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="HASTEN_DATA holds no checkpoints written by other tools"
)

DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
EXACT = 0.0
FOLDERS = {
    "awq": EXACT,
    "awq-gptqmodel": EXACT,
    "gptq": 5e-4,
    "w4a16": EXACT,
    "w4a16-asym-rtn": EXACT,
    "ct-awq-asym": EXACT,
    "fp8-dynamic": EXACT,
    "fp8-static-kv": EXACT,
    "fp8-block": EXACT,
}
"""Relative tolerance: GPTQ's own tool dequantises in fp16."""

LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip

WRITABLE = (AwqFormat, GptqFormat, CompressedTensorsFormat)

Arrays = dict[str, npt.NDArray[Any]]


def read_file(path: Path) -> Arrays:
    entries: list[tuple[str, dict[str, Any]]] = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]  # the package has no annotations
    return {
        name: np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in entries
    }


def open_folder(folder: str) -> tuple[QuantFormat, Arrays]:
    config = json.loads((DATA / folder / "config.json").read_text())["quantization_config"]
    return recognise(config), read_file(DATA / folder / "model.safetensors")


@pytest.mark.parametrize("folder", FOLDERS)
def test_dequantises_as_the_tool_does(folder: str) -> None:
    found, tensors = open_folder(folder)
    expected = read_file(DATA / folder / "expected.safetensors")
    for linear in ("self_attn.k_proj", "mlp.down_proj"):
        wanted = expected[f"model.layers.0.{linear}.weight"]
        weight = found.read(tensors, f"model.layers.0.{linear}")
        got = weight.dequantize()[: wanted.shape[0]]
        if FOLDERS[folder] == EXACT:
            np.testing.assert_array_equal(got, wanted)
        else:
            scale = np.abs(wanted).max()
            assert np.abs(got - wanted).max() <= FOLDERS[folder] * scale


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_quantised_linear_is_found_with_its_shape(folder: str) -> None:
    found, tensors = open_folder(folder)
    linears = found.linears(tensors)
    assert sorted(linears) == sorted(f"model.layers.0.{name}" for name in LINEARS)
    for linear in linears:
        assert found.shape(tensors, linear) == found.read(tensors, linear).shape
    kept = {"model.embed_tokens.weight", "model.norm.weight"}
    scales = {f"{name}.{s}_scale" for name in found.kv_scales(tensors) for s in "kv"}
    owned = {name for names in linears.values() for name in names} | scales
    assert {name for name in tensors if "layernorm" not in name} - owned == kept


@pytest.mark.parametrize("folder", FOLDERS)
def test_writing_what_was_read_is_the_identity(folder: str) -> None:
    found, tensors = open_folder(folder)
    assert isinstance(found, WRITABLE)
    for linear, names in found.linears(tensors).items():
        written = found.write(linear, found.read(tensors, linear))
        assert set(written) == set(names)
        for name, array in written.items():
            stored = tensors[name]
            assert array.shape == stored.shape
            assert array.dtype == stored.dtype
            assert array.tobytes() == stored.tobytes()


def test_fp8_activation_schemes_are_the_checkpoints() -> None:
    schemes = {
        "fp8-dynamic": ActivationScheme.TOKEN,
        "fp8-static-kv": ActivationScheme.STATIC,
        "fp8-block": ActivationScheme.TOKEN_GROUP,
    }
    for folder, scheme in schemes.items():
        found, tensors = open_folder(folder)
        weight = found.read(tensors, "model.layers.0.mlp.down_proj")
        assert isinstance(weight, Fp8Weight)
        assert weight.activations is scheme


def test_ragged_blocks_have_their_own_scales() -> None:
    found, tensors = open_folder("fp8-block")
    weight = found.read(tensors, "model.layers.0.self_attn.q_proj")
    assert isinstance(weight, Fp8Weight)
    assert weight.shape == (576, 576)
    assert weight.scale.shape == (5, 5)


def test_static_cache_scales_are_read() -> None:
    found, tensors = open_folder("fp8-static-kv")
    scales = found.kv_scales(tensors)
    assert list(scales) == ["model.layers.0.self_attn"]
    assert scales["model.layers.0.self_attn"].k == float(
        tensors["model.layers.0.self_attn.k_scale"][0]
    )


def test_symmetric_offsets_cost_two_bytes() -> None:
    for folder in ("w4a16", "gptq", "awq-gptqmodel"):
        found, tensors = open_folder(folder)
        weight = found.read(tensors, "model.layers.0.mlp.up_proj")
        assert isinstance(weight, GroupedIntWeight)
        assert weight.offset is not None
        assert weight.offset.dtype.itemsize == 2


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_written_configuration_says_what_the_read_one_said(folder: str) -> None:
    found, _ = open_folder(folder)
    assert isinstance(found, WRITABLE)
    assert recognise(found.config()) == found
