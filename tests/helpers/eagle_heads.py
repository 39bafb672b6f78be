"""EAGLE heads with random weights, written to files in the layouts in which heads are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.core.models import DecoderConfig

DRAFT_VOCAB = 48


def write_head(folder: Path, target: DecoderConfig, layout: str, seed: int = 0) -> Path:
    """A head for `target`: layout is safeailab1, safeailab3, specforge, speculators1 or 3."""
    folder.mkdir(parents=True, exist_ok=True)
    is_one = layout.endswith("1")
    tensors = _eagle1(target, seed) if is_one else _eagle3(target, seed)
    prefix = {"safeailab3": "midlayer.", "specforge": "midlayer.", "speculators1": "transformer."}
    renamed = {
        key.replace("layers.0.", prefix.get(layout, "layers.0.")): value
        for key, value in tensors.items()
    }
    if layout == "speculators1":
        renamed = {key.replace("fc.", "fusion_fc."): value for key, value in renamed.items()}
    write_safetensors(folder / "model.safetensors", renamed)
    (folder / "config.json").write_text(json.dumps(_config(target, layout)))
    return folder


def _config(target: DecoderConfig, layout: str) -> dict[str, Any]:
    layer = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "max_position_embeddings": 256,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_size,
        "num_hidden_layers": 1,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
    }
    layers = [0, 1, target.num_layers]
    if layout == "safeailab3":
        return {**layer, "draft_vocab_size": DRAFT_VOCAB}
    if layout == "specforge":
        return {
            **layer,
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": DRAFT_VOCAB,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers},
        }
    if layout.startswith("speculators"):
        nested = {key: value for key, value in layer.items() if key != "architectures"}
        common = {"transformer_layer_config": nested, "speculators_version": "0.1"}
        if layout == "speculators1":
            return {
                **common,
                "speculators_model_type": "eagle",
                "layernorms": False,
                "fusion_bias": True,
            }
        return {
            **common,
            "speculators_model_type": "eagle3",
            "draft_vocab_size": DRAFT_VOCAB,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": layers,
        }
    return layer


class _Draw:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def matrix(self, out: int, width: int) -> npt.NDArray[np.float32]:
        return self._rng.normal(0, 1.5 / np.sqrt(width), (out, width)).astype(np.float32)

    def norm(self, width: int) -> npt.NDArray[np.float32]:
        return self._rng.uniform(0.5, 1.5, width).astype(np.float32)


def _layer(target: DecoderConfig, draw: _Draw, width: int) -> dict[str, npt.NDArray[Any]]:
    hidden, mlp = target.hidden_size, target.intermediate_size
    attention, feed_forward = "layers.0.self_attn.", "layers.0.mlp."
    return {
        f"{attention}q_proj.weight": draw.matrix(target.q_width, width),
        f"{attention}k_proj.weight": draw.matrix(target.kv_width, width),
        f"{attention}v_proj.weight": draw.matrix(target.kv_width, width),
        f"{attention}o_proj.weight": draw.matrix(hidden, target.q_width),
        f"{feed_forward}gate_proj.weight": draw.matrix(mlp, hidden),
        f"{feed_forward}up_proj.weight": draw.matrix(mlp, hidden),
        f"{feed_forward}down_proj.weight": draw.matrix(hidden, mlp),
        "layers.0.post_attention_layernorm.weight": draw.norm(hidden),
    }


def _eagle1(target: DecoderConfig, seed: int) -> dict[str, npt.NDArray[Any]]:
    draw, hidden = _Draw(seed), target.hidden_size
    return {
        **_layer(target, draw, hidden),
        "embed_tokens.weight": draw.matrix(target.vocab_size, hidden),
        "fc.weight": draw.matrix(hidden, 2 * hidden),
        "fc.bias": draw.norm(hidden),
    }


def _eagle3(target: DecoderConfig, seed: int) -> dict[str, npt.NDArray[Any]]:
    draw, hidden = _Draw(seed), target.hidden_size
    rng = np.random.default_rng(seed)
    known = np.sort(rng.choice(target.vocab_size, DRAFT_VOCAB, replace=False))
    t2d = np.zeros(target.vocab_size, np.uint8)
    t2d[known] = 1
    return {
        **_layer(target, draw, 2 * hidden),
        "layers.0.input_layernorm.weight": draw.norm(hidden),
        "layers.0.hidden_norm.weight": draw.norm(hidden),
        "fc.weight": draw.matrix(hidden, 3 * hidden),
        "norm.weight": draw.norm(hidden),
        "lm_head.weight": draw.matrix(DRAFT_VOCAB, hidden),
        "d2t": known - np.arange(DRAFT_VOCAB),
        "t2d": t2d,
    }


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, path)
