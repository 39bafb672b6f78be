"""Checkpoints written by other tools, whole models on the native kernels against the reference.

The folders are described in `checkpoints/README.md` of the data folder: one layer each, no models
to talk to.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hasten.core.binding import ModelBinding
from hasten.core.loading import LoadedModel, load_model
from hasten.core.options import CacheOptions, EngineOptions, ExecutionOptions, ModelOptions
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.evals.logits import LogitsReader
from hasten.evals.target import Scored
from hasten.kernels.backend import available_backends, get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Embed, Linear
from hasten.kernels.program import Capacity, KVGroupSpec, Program, Rows, WeightName
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    F32Array,
    Fp8Weight,
    Matrix,
    StackedWeight,
    Weight,
)
from hasten.quant.integers import make_grouped
from ml_dtypes import bfloat16

CHECKPOINTS = Path(os.environ.get("HASTEN_DATA", Path(__file__).parents[4] / "shared")) / (
    "checkpoints"
)
FOLDERS = ("awq", "awq-gptqmodel", "gptq", "w4a16", "w4a16-asym-rtn", "ct-awq-asym", "fp8-dynamic",
           "fp8-static-kv", "fp8-block")  # fmt: skip
IDS = tuple(np.random.default_rng(2).integers(0, 512, 48).tolist())

needs_checkpoints = pytest.mark.skipif(
    not CHECKPOINTS.is_dir(), reason="HASTEN_DATA holds no checkpoints written by other tools"
)
pytestmark = pytest.mark.skipif(
    "cpu" not in available_backends(), reason="the native kernels do not work here"
)


def logits_of(folder: str, kernels: str, dtype: str, kv_dtype: str = "auto") -> F32Array:
    """Log-probabilities at every position, [len(IDS) - 1, 512]."""
    options = EngineOptions(
        model=ModelOptions(dtype=dtype),
        cache=CacheOptions(kv_cache_dtype=kv_dtype),
        execution=ExecutionOptions(num_threads=1),
    )
    model = with_plain_inputs(load_model(str(CHECKPOINTS / folder)))
    binding = ModelBinding.resolve(model, get_backend(kernels, 1), options)
    return LogitsReader(binding, len(IDS), 16).read(Scored(IDS, 1)).logprobs


def with_plain_inputs(model: LoadedModel) -> LoadedModel:
    """The native kernels multiply fp8 weights with inputs as they are; here the reference too."""
    weights = {name: plain_inputs(weight) for name, weight in model.weights.items()}
    return replace(model, weights=weights)


def plain_inputs(weight: Weight) -> Weight:
    if isinstance(weight, StackedWeight):
        return StackedWeight(tuple(cast("Matrix", plain_inputs(part)) for part in weight.parts))
    if isinstance(weight, Fp8Weight):
        return replace(weight, activations=ActivationScheme.NONE, input_scale=None)
    return weight


def error(got: F32Array, expected: F32Array) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@needs_checkpoints
@pytest.mark.parametrize("folder", FOLDERS)
def test_whole_models_agree_with_the_reference(folder: str) -> None:
    exact = logits_of(folder, "reference", "float32")
    assert error(logits_of(folder, "cpu", "float32"), exact) < 1e-5
    # The yardstick of bf16 is what the reference loses by it; int8 inputs cost some more.
    lost = error(logits_of(folder, "reference", "bfloat16"), exact)
    assert error(logits_of(folder, "cpu", "bfloat16"), exact) < 2 * lost + 2e-3


@needs_checkpoints
def test_static_cache_scales_mean_the_same() -> None:
    exact = logits_of("fp8-static-kv", "reference", "float32", "fp8")
    assert error(logits_of("fp8-static-kv", "cpu", "float32", "fp8"), exact) < 1e-3


def test_offsets_that_half_precision_cannot_hold() -> None:
    """One input at a time gives the weight's own numbers back: fp16 scales, any zero point."""
    rng = np.random.default_rng(8)
    out, width, group_size = 96, 128, 64
    scale = rng.uniform(0.5, 2, (out, width // group_size)).astype(np.float16)
    zero = rng.integers(0, 16, scale.shape)
    codes = rng.integers(0, 16, (out, width)).astype(np.uint8)
    weight = make_grouped(4, codes, scale, zero)
    assert weight.offset is not None
    assert weight.offset.dtype == np.float32
    group = KVGroupSpec(num_layers=1, num_kv_heads=1, head_size=32, dtype=DType.BF16)
    layout = PromptLayout((group,), num_requests=1, max_len=width)
    program = Program(width, (group,))
    rows = program.buffer("x", Rows.TOKENS, width, DType.BF16)
    found = program.buffer("found", Rows.TOKENS, out, DType.F32)
    table, name = WeightName("table"), WeightName("weight")
    program.add(Embed(table, rows))
    program.add(Linear(rows, name, found))
    program.tap("found", found)
    backend = get_backend("cpu", 1)
    weights: dict[WeightName, Weight] = {
        table: DenseWeight(np.eye(width).astype(bfloat16)),
        name: weight,
    }
    cache = backend.allocate_kv(layout.kv_plan())
    step = backend.compile(program, weights, cache, Capacity(width, 1, 1, width))
    step.run(layout.batch([PromptChunk(np.arange(width, dtype=np.int32))]))
    expected = weight.dequantize().T
    np.testing.assert_allclose(step.tap("found"), expected, rtol=0, atol=1e-5 * scale.max())
