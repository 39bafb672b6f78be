"""Tiny random models as Hugging Face folders, without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hasten.core.loading.safetensors_writer import write_safetensors
from hasten.core.models import DecoderConfig, weight_specs

from tests.helpers.random_models import random_model


def write_folder(folder: Path, config: DecoderConfig, seed: int = 0) -> Path:
    """A Llama of these numbers; `config.rope` must be plain, of base 10,000."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_model(config, seed).weights
    tensors = {}
    for spec in weight_specs(config):
        data, begin = weights[spec.name].dequantize(), 0
        for part in spec.parts:
            tensors[part.key] = np.ascontiguousarray(data[begin : begin + part.shape[0]])
            begin += part.shape[0]
    write_safetensors(folder / "model.safetensors", tensors)
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "num_hidden_layers": config.num_layers,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": 10000.0,
        "tie_word_embeddings": config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return folder
