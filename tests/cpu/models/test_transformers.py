"""Models run by the transformers library as foreign nodes: the same logits, one text, refusals."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hasten.core.binding import ModelBinding
from hasten.core.loading import LoadError, load_model
from hasten.core.options import EngineOptions, ExecutionOptions, ModelOptions
from hasten.kernels.dtypes import DType

from tests.cpu.engine.test_one_request_one_text import Workload, check_one_text
from tests.helpers.stepper import Stepper
from tests.helpers.tiny_models import LONG_ROPE, SIZES, reference_logprobs, save_tiny_model
from tests.helpers.workbench import Workbench

TOLERANCE = 1e-4
LENGTH = 40
CHUNKINGS = [[LENGTH], [5, *[1] * 3, 17, 15]]

FOREIGN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_positions": 128}),
    "gpt-neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "starcoder2": ("Starcoder2", {"sliding_window": 8}),
    "cohere": ("Cohere", {"logit_scale": 0.5}),
    "olmo3": ("Olmo3", {"sliding_window": 8}),
    "gpt-oss": ("GptOss", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8}),
    "qwen2-moe": ("Qwen2Moe", {"num_experts": 4, "moe_intermediate_size": 32}),
    "mamba": ("Mamba", {}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}),
    "phi3-long-rope": ("Phi3", {"rope_parameters": {**LONG_ROPE, "partial_rotary_factor": 0.75}}),
}
REFUSED = {
    "mamba": "its attention cannot be replaced",
    "lfm2": "1 of 3 layers attend",
    "phi3-long-rope": "'longrope' depends on",
}


def save_foreign(name: str, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

    family, changes = FOREIGN[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    make: Any = transformers.AutoModelForCausalLM
    model = make.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return model


def check_logits(theirs: Any, folder: Path) -> None:
    token_ids = np.random.default_rng(1).integers(0, 20, LENGTH).tolist()
    expected = reference_logprobs(theirs, token_ids)
    stepper = Stepper(load_model(str(folder), model_impl="transformers"))
    for chunks in CHUNKINGS:
        difference = np.abs(stepper.logprobs(token_ids, chunks) - expected).max()
        assert difference <= TOLERANCE, f"in chunks of {chunks}: {difference}"


@pytest.mark.parametrize("name", [name for name in FOREIGN if name not in REFUSED])
def test_log_probabilities_equal_those_of_the_library(name: str, tmp_path: Path) -> None:
    check_logits(save_foreign(name, tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "mixtral"])
def test_also_for_families_that_are_native(name: str, tmp_path: Path) -> None:
    check_logits(save_tiny_model(name, tmp_path), tmp_path)


def test_what_cannot_run_in_a_step_is_refused(tmp_path: Path) -> None:
    for name, reason in REFUSED.items():
        save_foreign(name, tmp_path / name)
        with pytest.raises(LoadError, match=reason) as caught:
            load_model(str(tmp_path / name), model_impl="transformers")
        assert "\n" not in str(caught.value)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(LoadError, match=r"tensor 'model.layers.3.\S+': missing"):
        load_model(str(tmp_path), model_impl="transformers")


def test_options_that_need_a_native_model_are_refused(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    with pytest.raises(LoadError, match="--quantization int8 needs --model-impl native"):
        load_model(str(tmp_path), model_impl="transformers", quantization="int8")
    with pytest.raises(LoadError, match="needs a model directory"):
        load_model("embedded", model_impl="transformers")
    model = load_model(str(tmp_path), model_impl="transformers")
    with pytest.raises(LoadError, match="--kv-cache-dtype fp8 needs --model-impl native"):
        model.build_program(DType.F32, DType.FP8_E4M3)


def test_an_engine_says_which_kernels_it_takes(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    options = EngineOptions(
        model=ModelOptions(model=str(tmp_path), model_impl="transformers"),
        execution=ExecutionOptions(num_threads=1),
    )
    binding = ModelBinding.load(options)
    assert binding.backend.name == "reference"
    assert all("foreign_body" in note for note in binding.notes)


def test_one_request_one_text(tmp_path: Path) -> None:
    save_tiny_model("gemma2", tmp_path)
    model = load_model(str(tmp_path), model_impl="transformers")
    bench = Workbench.make(model, "reference", DType.F32, num_blocks=400, max_model_len=256)
    workload = Workload(random.Random(1), bench.vocab_size, max_prompt=60, max_tokens=20)
    check_one_text(bench, workload.requests())
