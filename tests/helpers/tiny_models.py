"""Tiny random models of every family, made and saved by transformers: the oracle for our own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hasten.kernels.step import MAX_LOGPROBS

SIZES: dict[str, Any] = {
    "vocab_size": MAX_LOGPROBS,  # so that a step can report the log-probability of every token
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
GEMMA: dict[str, Any] = {"head_dim": 24, "query_pre_attn_scalar": 20}
GEMMA2: dict[str, Any] = {
    **GEMMA,
    "sliding_window": 8,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.0,
}
GEMMA3: dict[str, Any] = {
    **GEMMA,
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}

TINY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "smollm2": (
        "Llama",
        {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
    ),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "mistral-window": ("Mistral", {"sliding_window": 8}),
    "qwen2": ("Qwen2", {"use_sliding_window": False}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-yarn-rope": ("Qwen3", {"head_dim": 32, "rope_parameters": YARN_ROPE}),
    "qwen3-yarn-details": (
        "Qwen3",
        {
            "head_dim": 16,
            "rope_parameters": {
                **YARN_ROPE,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 0.4,
            },
        },
    ),
    "llama-dynamic-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3-window": (
        "SmolLM3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 8},
    ),
    "gemma": ("Gemma", {"head_dim": 24}),
    "gemma2": ("Gemma2", GEMMA2),
    "gemma2-plain-scale": ("Gemma2", {**GEMMA2, "query_pre_attn_scalar": 24}),
    "gemma3-plain-scale": ("Gemma3", {**GEMMA3, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3", GEMMA3),
    "phi3": ("Phi3", {}),
    "phi3-window": ("Phi3", {"sliding_window": 8}),
    "phi4-long-rope": (
        "Phi3",
        {
            "original_max_position_embeddings": 32,
            "tie_word_embeddings": True,
            "rope_parameters": LONG_ROPE,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "olmo2-biases": ("Olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.6,
            "logits_scaling": 0.5,
            "mlp_bias": True,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "head_dim": 16,
        },
    ),
    "qwen3-moe-renormalised": (
        "Qwen3Moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "head_dim": 16,
            "norm_topk_prob": True,
        },
    ),
}
"""By name: the family, and what differs from `SIZES`."""


def save_tiny_model(
    name: str, folder: Path, *, dtype: torch.dtype = torch.float32, **save_options: Any
) -> Any:
    """Write a model of `TINY_MODELS` to `folder`; returns transformers' model of the same weights.

    `save_options` go to `save_pretrained` (`max_shard_size` cuts the weights into several files).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

    family, changes = TINY_MODELS[name]
    text = "Text" if family == "Gemma3" else ""
    config_class = getattr(transformers, f"{family}{text}Config")
    model_class = getattr(transformers, f"{family}ForCausalLM")
    config = config_class(**{**SIZES, **changes}, attn_implementation="eager")
    model = model_class(config).to(dtype).eval()
    _randomise(model)
    model.save_pretrained(folder, **save_options)
    return model


def _randomise(model: Any) -> None:
    """Weights large enough that every part of the model matters in the fourth digit of a logit."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name
            parameter.copy_(1 + 0.2 * noise if is_norm else 0.15 * noise)


def reference_logprobs(model: Any, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """transformers' log-probabilities over a whole sequence: [len(token_ids), vocab_size]."""
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0].float()
    logprobs: npt.NDArray[np.float32] = logits.log_softmax(dim=-1).numpy()
    return logprobs
