"""GGUF files of every architecture against transformers: names, norms, row order, metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hasten.core.loading import load_model
from hasten.kernels.program import WeightName

from tests.helpers.gguf_models import write_gguf_model
from tests.helpers.stepper import Stepper
from tests.helpers.tiny_models import LONG_ROPE, reference_logprobs, save_tiny_model

TOLERANCE = 1e-4
LENGTH = 40

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-yarn-rope": (
        "qwen3",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "smollm3": ("smollm3", {"rope.freq_base": 2e6}),
    "gemma": ("gemma", {}),
    "gemma2-plain-scale": (
        "gemma2",
        {
            "attention.sliding_window": 8,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3-plain-scale": (
        "gemma3",
        {
            "attention.sliding_window": 8,
            "rope.freq_base": 1e5,
            "rope.freq_base_swa": 1e3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3-window": ("phi3", {"attention.sliding_window": 8, "rope.dimension_count": 16}),
    "olmo2": ("olmo2", {}),
    "granite": (
        "granite",
        {
            "attention.scale": 0.4,
            "embedding_scale": 6.0,
            "residual_scale": 0.6,
            "logit_scale": 0.5,
        },
    ),
    "mixtral": ("llama", {"expert_count": 5, "expert_used_count": 2, "rope.freq_base": 1e6}),
    "qwen3-moe-renormalised": (
        "qwen3moe",
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32},
    ),
}
"""By the name of the tiny model: the architecture, and its metadata."""


def check(theirs: Any, path: Path) -> None:
    token_ids = np.random.default_rng(1).integers(0, theirs.config.vocab_size, LENGTH).tolist()
    expected = reference_logprobs(theirs, token_ids)
    logprobs = Stepper(load_model(str(path))).logprobs(token_ids, [LENGTH])
    assert np.abs(logprobs - expected).max() <= TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = save_tiny_model(name, tmp_path)
    family, metadata = MODELS[name]
    write_gguf_model(tmp_path / "tiny.gguf", theirs, family, metadata)
    check(theirs, tmp_path / "tiny.gguf")


def test_factors_of_long_rope_are_chosen_for_all_requests(tmp_path: Path) -> None:
    """32 tokens of original context: 40 take the long factors."""
    theirs = save_tiny_model("phi4-long-rope", tmp_path)
    path = tmp_path / "tiny.gguf"
    factors = {
        f"rope_factors_{kind}.weight": np.array(LONG_ROPE[f"{kind}_factor"], np.float32)
        for kind in ("long", "short")
    }
    metadata = {
        "rope.dimension_count": 12,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(8) / np.log(32))),
    }
    write_gguf_model(path, theirs, "phi3", metadata, factors)
    check(theirs, path)
    short = load_model(str(path), max_model_len=32)
    assert short.config.rope != load_model(str(path), max_model_len=33).config.rope
    assert short.content_hash != load_model(str(path)).content_hash


@pytest.mark.parametrize(
    "tensor_type", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q5_0]
)
def test_packed_experts_are_the_dequantised_ones(
    tmp_path: Path, tensor_type: GGMLQuantizationType
) -> None:
    theirs = save_tiny_model("qwen3-moe-renormalised", tmp_path)
    path = tmp_path / "tiny.gguf"
    family, metadata = MODELS["qwen3-moe-renormalised"]
    write_gguf_model(path, theirs, family, metadata, tensor_type=tensor_type)
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    gate, up = (
        gguf.dequantize(stored[name].data, stored[name].tensor_type)
        for name in ("blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight")
    )
    expected = np.concatenate([gate, up], axis=1).reshape(-1, gate.shape[-1])
    ours = load_model(str(path)).weights[WeightName("layers.1.expert_gate_up")]
    assert np.array_equal(ours.dequantize(), expected)
