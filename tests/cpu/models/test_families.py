"""Every family against transformers on tiny random weights: fp32, whole and stepwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hasten.core.loading import load_model, read_model_info
from hasten.core.models.calibratable import CalibratableDecoder
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight

from tests.helpers.stepper import Stepper
from tests.helpers.tiny_models import TINY_MODELS, reference_logprobs, save_tiny_model

TOLERANCE = 1e-4
LENGTH = 40
CHUNKINGS = [[LENGTH], [1] * LENGTH, [5, *[1] * (LENGTH - 5)], [7, 7, 7, 7, 7, 5]]


@pytest.mark.parametrize("name", TINY_MODELS)
def test_log_probabilities_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = save_tiny_model(name, tmp_path)
    random = np.random.default_rng(1)
    token_ids = random.integers(0, theirs.config.vocab_size, LENGTH).tolist()
    expected = reference_logprobs(theirs, token_ids)
    assert np.abs(expected).max() > 1
    stepper = Stepper(load_model(str(tmp_path)))
    for chunks in CHUNKINGS:
        difference = np.abs(stepper.logprobs(token_ids, chunks) - expected).max()
        assert difference <= TOLERANCE, f"in chunks of {chunks}: {difference}"


def test_several_files_and_bfloat16_are_the_same_model(tmp_path: Path) -> None:
    save_tiny_model("qwen2", tmp_path / "one", dtype=torch.bfloat16)
    save_tiny_model("qwen2", tmp_path / "many", dtype=torch.bfloat16, max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    one, many = load_model(str(tmp_path / "one")), load_model(str(tmp_path / "many"))
    assert one.weights.keys() == many.weights.keys()
    for name, weight in one.weights.items():
        other = many.weights[name]
        assert isinstance(weight, DenseWeight)
        assert isinstance(other, DenseWeight)
        assert weight.data.dtype.name == "bfloat16"
        assert np.array_equal(weight.data, other.data)


def test_bfloat16_activations_stay_close(tmp_path: Path) -> None:
    theirs = save_tiny_model("qwen3", tmp_path)
    token_ids = np.random.default_rng(2).integers(0, 20, 29).tolist()
    expected = reference_logprobs(theirs, token_ids)
    logprobs = Stepper(load_model(str(tmp_path)), dtype=DType.BF16).logprobs(token_ids, [29])
    theirs.to(torch.bfloat16)
    rounded = reference_logprobs(theirs, token_ids)
    assert np.abs(logprobs - expected).max() <= 2 * np.abs(rounded - expected).max()


def test_what_transformers_writes_beside_the_weights(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    info = read_model_info(str(tmp_path))
    assert info.name == tmp_path.name
    assert info.eos_token_ids == (2,)
    assert info.config.max_position_embeddings == 256
    assert WeightName("lm_head") in load_model(str(tmp_path)).weights


@pytest.mark.parametrize("name", ["gemma2", "olmo2", "phi3", "granite", "mixtral"])
def test_calibration_refuses_blocks_that_it_does_not_know(name: str, tmp_path: Path) -> None:
    save_tiny_model(name, tmp_path)
    with pytest.raises(ValueError, match="calibration does not know models with"):
        CalibratableDecoder(load_model(str(tmp_path)), get_backend("reference"), 8)


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_experts_are_quantised_at_load_time(scheme: str, tmp_path: Path) -> None:
    theirs = save_tiny_model("mixtral", tmp_path)
    token_ids = np.random.default_rng(2).integers(0, 20, 29).tolist()
    expected = reference_logprobs(theirs, token_ids)
    model = load_model(str(tmp_path), quantization=scheme)
    assert not isinstance(model.weights[WeightName("layers.0.expert_down")], DenseWeight)
    logprobs = Stepper(model).logprobs(token_ids, [29])
    assert 0 < np.abs(logprobs - expected).mean() < 0.5
