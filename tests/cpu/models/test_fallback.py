"""`--kernels auto` serves with the reference what the native kernels cannot run, and says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hasten.core.binding import ModelBinding
from hasten.core.build import build_engine
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SpeculationOptions,
)
from hasten.core.params import GenerationParams
from hasten.kernels.backend import UnsupportedOpError, available_backends
from hasten.spec.build import make_speculator

from tests.helpers.engines import ask, run_requests
from tests.helpers.tiny_models import save_tiny_model


def options(folder: Path, kernels: str, model_impl: str = "native") -> EngineOptions:
    return EngineOptions(
        model=ModelOptions(model=str(folder), model_impl=model_impl),
        cache=CacheOptions(kv_cache_memory_bytes=1 << 22),
        execution=ExecutionOptions(kernels=kernels, num_threads=1),
    )


def test_auto_is_the_reference_where_the_native_kernels_lack_an_op(tmp_path: Path) -> None:
    if "cpu" not in available_backends():
        pytest.skip("the native kernels are not built here")
    save_tiny_model("qwen3", tmp_path)
    refused = "kernels cpu cannot run this model: foreign_body: "
    with pytest.raises(UnsupportedOpError, match=refused):
        ModelBinding.load(options(tmp_path, "cpu", "transformers"))
    lines: list[str] = []
    engine = build_engine(options(tmp_path, "auto", "transformers"), lines.append)
    assert sum(refused in line for line in lines) == 1
    assert any("kernels reference" in line for line in lines)
    params = GenerationParams(max_tokens=3, seed=1, ignore_eos=True)
    answers = run_requests(engine, [ask("r", [3, 4, 5], params)])
    assert len(answers["r", 0].token_ids) == 3


def test_a_model_of_the_transformers_library_is_speculated_for(tmp_path: Path) -> None:
    save_tiny_model("qwen3", tmp_path)
    plain = options(tmp_path, "reference", "transformers")
    speculating = replace(plain, speculation=SpeculationOptions("auto", spec_depth="3"))
    params = GenerationParams(max_tokens=24, seed=1, temperature=0.0, ignore_eos=True)
    expected = run_requests(build_engine(plain), [ask("r", [3, 4, 5] * 4, params)])
    engine = build_engine(speculating, make_speculator=make_speculator)
    answers = run_requests(engine, [ask("r", [3, 4, 5] * 4, params)])
    assert answers["r", 0].token_ids == expected["r", 0].token_ids
    assert engine.stats().num_draft_tokens > 0


def test_auto_is_the_fastest_backend_for_what_it_can_run(tmp_path: Path) -> None:
    save_tiny_model("qwen3", tmp_path)
    binding = ModelBinding.load(options(tmp_path, "auto"))
    assert binding.backend.name == available_backends()[0]
    assert binding.notes == ()
