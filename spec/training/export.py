"""A trained head as a folder that `--spec-eagle-head` reads: weights, config, card, loss plot.

The layout is SpecForge's (`core.loading.eagle`), without the LM head, for training leaves the
target's rows as they are. Weights are bf16. Exercised by `pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hasten.core.loading.eagle import WEIGHT_BITS
from hasten.core.loading.safetensors_writer import write_json, write_safetensors
from hasten.spec.training.rounding import NUM_BITS
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from hasten.core.models import DecoderConfig
    from hasten.kernels.step import I32
    from hasten.spec.training.head import EagleHead

PLOT_WIDTH, PLOT_HEIGHT, MARGIN = 640, 240, 36


def export_head(
    head: EagleHead,
    target: DecoderConfig,
    feature_layers: Sequence[int],
    draft_ids: I32,
    folder: Path,
    card: Mapping[str, object],
    log: Sequence[Mapping[str, Any]],
) -> None:
    """Write the folder. `card` says how the head was made, `log` how the loss went."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", _tensors(head, target, draft_ids))
    write_json(folder / "config.json", _config(target, feature_layers, len(draft_ids)))
    write_json(folder / "card.json", dict(card))
    (folder / "README.md").write_text(_card(card))
    (folder / "loss.svg").write_text(_plot([(row["num_tokens"], row["loss"]) for row in log]))


def _tensors(head: EagleHead, target: DecoderConfig, draft_ids: I32) -> dict[str, npt.NDArray[Any]]:
    state = {key: value.detach().float().numpy() for key, value in head.state_dict().items()}
    q, kv = target.q_width, target.kv_width
    qkv, gate_up = state["qkv.weight"], state["gate_up.weight"]
    layer = {
        "self_attn.q_proj": qkv[:q],
        "self_attn.k_proj": qkv[q : q + kv],
        "self_attn.v_proj": qkv[q + kv :],
        "self_attn.o_proj": state["o_proj.weight"],
        "mlp.gate_proj": gate_up[: target.intermediate_size],
        "mlp.up_proj": gate_up[target.intermediate_size :],
        "mlp.down_proj": state["down_proj.weight"],
        "input_layernorm": state["input_layernorm.weight"],
        "hidden_norm": state["hidden_norm.weight"],
        "post_attention_layernorm": state["post_attention_layernorm.weight"],
    }
    tensors = {f"midlayer.{name}.weight": value for name, value in layer.items()}
    tensors |= {f"{name}.weight": state[f"{name}.weight"] for name in ("fc", "norm")}
    plain: dict[str, npt.NDArray[Any]] = {
        key: value.astype(bfloat16) for key, value in tensors.items()
    }
    plain["d2t"] = draft_ids.astype(np.int64) - np.arange(len(draft_ids))
    return plain


def _config(
    target: DecoderConfig, feature_layers: Sequence[int], draft_vocab_size: int
) -> dict[str, Any]:
    inv_freq = target.rope.inv_freq
    # inv_freq[i] = theta ** (-2 i / rotary_dim)
    theta = (1 / inv_freq[1]) ** (target.rope.rotary_dim / 2)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "max_position_embeddings": target.max_position_embeddings,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_size,
        "num_hidden_layers": 1,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": round(theta, 3),
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
        "draft_vocab_size": draft_vocab_size,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(feature_layers),
            WEIGHT_BITS: NUM_BITS,
        },
    }


def _card(card: Mapping[str, object]) -> str:
    lines = [f"- {key}: {value}" for key, value in card.items()]
    return "\n".join(
        [
            "# An EAGLE-3 head",
            "",
            "Trained by `hasten train-eagle` on text that the model wrote itself.",
            "",
            *lines,
            "",
            "![loss over tokens](loss.svg)",
            "",
        ]
    )


def _plot(points: Sequence[tuple[float, float]]) -> str:
    """A line of losses over tokens."""
    points = points or [(0.0, 0.0)]
    most = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    span = (high - low) or 1.0

    def place(x: float, y: float) -> str:
        return (
            f"{MARGIN + x / most * (PLOT_WIDTH - 2 * MARGIN):.1f},"
            f"{PLOT_HEIGHT - MARGIN - (y - low) / span * (PLOT_HEIGHT - 2 * MARGIN):.1f}"
        )

    line = " ".join(place(x, y) for x, y in points)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<text x="4" y="{MARGIN}">{high:.2f}</text>'
        f'<text x="4" y="{PLOT_HEIGHT - MARGIN}">{low:.2f}</text>'
        f'<text x="{PLOT_WIDTH - 4}" y="{PLOT_HEIGHT - 8}" text-anchor="end">'
        f"loss over {most:,.0f} tokens</text>"
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/></svg>\n'
    )
