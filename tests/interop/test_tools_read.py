"""What `hasten quantize` writes, read by the loaders of the tools whose formats it writes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hasten.core.loading import load_model
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.core.quantize import QuantizeOptions, quantize_model
from hasten.core.quantize.tools import ToolEnvironment
from hasten.kernels.backend import get_backend
from hasten.kernels.weights import F32Array
from safetensors.numpy import load_file

from tests.cpu.quant.test_quantize_cli import save_model

READERS = Path(__file__).parent / "readers"
IDS = np.random.default_rng(0).integers(0, 20, (4, 32)).astype(np.int32)
CASES = {
    "int4-awq": ("autoawq", "autoawq_reader.py", QuantizeOptions(scheme="int4-awq"), 0.0),
    # GPTQModel dequantises in fp16.
    "int4-gptq": ("optimum", "gptqmodel_reader.py", QuantizeOptions(scheme="int4-gptq"), 2**-10),
    **{
        name: ("llmcompressor", "compressed_tensors_reader.py", options, 2**-8)  # bf16
        for name, options in {
            "int4-rtn": QuantizeOptions(scheme="int4-rtn"),
            "int8": QuantizeOptions(scheme="int8"),
            "fp8": QuantizeOptions(scheme="fp8"),
            "fp8 static": QuantizeOptions(
                scheme="fp8", activations="static", kv_cache="fp8-static"
            ),
        }.items()
    },
}
"""By scheme: the tool, our program that has it read, options, and its relative rounding."""


def read_by(environment: ToolEnvironment, reader: str, folder: Path) -> dict[str, F32Array]:
    out = folder.with_name("read.safetensors")
    command = (environment.python, READERS / reader, folder, out)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return load_file(out)


def read_by_us(folder: Path) -> dict[str, F32Array]:
    """The linears that are quantised."""
    decoder = CalibratableDecoder(load_model(str(folder)), get_backend("reference"), 32)
    return {
        name: weight.dequantize()
        for layer_idx in range(decoder.num_layers)
        for name, weight in decoder.weights(layer_idx).items()
        if "proj.weight" in name
    }


@pytest.mark.parametrize("case", CASES)
def test_the_tool_reads_the_same_numbers(
    tmp_path: Path, case: str, environment_of: Callable[[str], ToolEnvironment]
) -> None:
    tool, reader, options, rounding = CASES[case]
    environment = environment_of(tool)
    save_model("llama", tmp_path / "source")
    quantize_model(str(tmp_path / "source"), tmp_path / "out", options, IDS)
    theirs, ours = read_by(environment, reader, tmp_path / "out"), read_by_us(tmp_path / "out")
    assert {name for name in theirs if name.endswith("weight")} == set(ours)
    for name, expected in ours.items():
        error = np.abs(theirs[name] - expected)
        assert (error <= rounding * np.abs(expected)).all(), name
    scales = {name: s.item() for name, s in theirs.items() if name.endswith("_scale")}
    if case == "fp8 static":
        kv_scales = load_model(str(tmp_path / "out")).kv_scales
        assert len(scales) == 2 * len(kv_scales)
        for layer_idx, (k, v) in kv_scales.items():
            attention = f"model.layers.{layer_idx}.self_attn"
            assert (scales[f"{attention}.k_scale"], scales[f"{attention}.v_scale"]) == (k, v)
