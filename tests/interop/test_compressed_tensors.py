"""What `hasten quantize` writes, read by compressed-tensors itself (through transformers).

Runs where the package is installed: `pip install --no-deps compressed-tensors loguru`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hasten.core.loading import LoadedModel, load_model
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.core.quantize import QuantizeOptions, quantize_model
from hasten.kernels.backend import get_backend

from tests.helpers.tiny_models import save_tiny_model

pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

IDS = np.random.default_rng(0).integers(0, 20, (4, 32)).astype(np.int32)
CASES = {
    "int4-rtn": QuantizeOptions(scheme="int4-rtn"),
    "int8": QuantizeOptions(scheme="int8"),
    "fp8": QuantizeOptions(scheme="fp8"),
    "fp8 static": QuantizeOptions(scheme="fp8", activations="static", kv_cache="fp8-static"),
}


def read_by_transformers(folder: Path) -> Any:
    """transformers' model, its linears decompressed by the package."""
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        with torch.inference_mode():
            model(torch.from_numpy(IDS[:1]).long())  # the first call decompresses
    return model


def read_by_us(model: LoadedModel) -> dict[str, np.ndarray[Any, Any]]:
    decoder = CalibratableDecoder(model, get_backend("reference"), 32)
    return {
        name: weight.dequantize()
        for layer_idx in range(decoder.num_layers)
        for name, weight in decoder.weights(layer_idx).items()
    }


@pytest.mark.parametrize("case", CASES)
def test_the_package_reads_the_same_numbers(tmp_path: Path, case: str) -> None:
    save_tiny_model("llama", tmp_path / "source", dtype=torch.bfloat16)
    quantize_model(str(tmp_path / "source"), tmp_path / "out", CASES[case], IDS)
    theirs = dict(read_by_transformers(tmp_path / "out").named_parameters())
    for name, ours in read_by_us(load_model(str(tmp_path / "out"))).items():
        expected = torch.from_numpy(ours).bfloat16()  # the package computes in the model's dtype
        assert torch.equal(theirs[name].detach().bfloat16(), expected), name
