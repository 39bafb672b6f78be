"""The embedded model with int4 weights, head included, and an fp8 KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hasten.core.build import build_engine
from hasten.core.engine import Engine
from hasten.core.loading import LoadError, load_model
from hasten.core.models import weight_specs
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
)
from hasten.core.params import GenerationParams
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType

from tests.helpers.engines import ask, run_requests

OPTIONS = EngineOptions(
    model=ModelOptions(max_model_len=128, quantization="int4", quantize_lm_head=True),
    cache=CacheOptions(kv_cache_memory_bytes=32 * 2**20, kv_cache_dtype="fp8"),
    scheduler=SchedulerOptions(max_num_seqs=4, max_num_batched_tokens=128),
    execution=ExecutionOptions(kernels="reference"),
)
COUNTING = [28, 216, 33, 216, 34, 216, 35, 216, 36]


@dataclass(slots=True)
class Served:
    engine: Engine
    report: str


@pytest.fixture(scope="module")
def served() -> Served:
    lines: list[str] = []
    try:
        engine = build_engine(OPTIONS, lines.append)
    except LoadError as error:
        pytest.skip(str(error))
    return Served(engine, "\n".join(lines))


def test_it_answers_and_repeats_itself(served: Served) -> None:
    params = GenerationParams(max_tokens=12, seed=1, temperature=0.0)
    first = run_requests(served.engine, [ask("a", COUNTING, params)])
    again = run_requests(served.engine, [ask("b", COUNTING, params), ask("c", [5], params)])
    assert len(first["a", 0].token_ids) == 12
    assert first["a", 0].text == again["b", 0].text


def test_the_report_names_the_cache_and_its_error(served: Served) -> None:
    assert "KV cache fp8_e4m3" in served.report
    assert "fp8 KV cache: attention errs by at most" in served.report


def test_weights_take_at_most_30_percent_of_bf16(served: Served) -> None:
    model = load_model("embedded", quantization="int4", quantize_lm_head=True)
    numbers = sum(
        weight.shape[0] * (weight.shape[1] if len(weight.shape) > 1 else 1)
        for weight in (model.weights[spec.name] for spec in weight_specs(model.config))
    )
    assert model.num_bytes <= 0.30 * 2 * numbers
    assert f"weights      {model.num_bytes / 2**20:,.1f} MiB" in served.report
    assert "weights take 28.2% of the bytes, a token's KV 51.6%" in served.report


def test_the_cache_takes_at_most_52_percent_of_bf16(served: Served) -> None:
    backend, model = get_backend("reference"), load_model("embedded")
    fp8, bf16 = (
        sum(
            backend.kv_block_bytes(spec, 16)
            for spec in model.build_program(DType.BF16, dtype).kv_groups
        )
        for dtype in (DType.FP8_E4M3, DType.BF16)
    )
    assert fp8 <= 0.52 * bf16
