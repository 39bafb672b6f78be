"""transformers' model of the embedded one: the oracle of its arithmetic.

The weights are dequantised by our loader, which has tests of its own, because transformers needs a
quarter of a minute to read the file.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from hasten.core.loading import LoadedModel
from hasten.core.models import weight_specs


def transformers_model(model: LoadedModel) -> Any:
    """transformers' Llama with our configuration and dequantised weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

    config = model.config
    make_model: Any = LlamaForCausalLM
    theirs = make_model(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
    )
    state: dict[str, torch.Tensor] = {}
    for spec in weight_specs(config):
        values = torch.from_numpy(model.weights[spec.name].dequantize())
        ends = np.cumsum([part.shape[0] for part in spec.parts]).tolist()
        for part, end in zip(spec.parts, ends, strict=True):
            state[part.key] = values[end - part.shape[0] : end]
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert not unexpected
    assert missing == ["lm_head.weight"]
    return theirs.eval()
