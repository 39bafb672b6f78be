"""A model as a Hugging Face directory, for models that come without one (GGUF files).

Reading a configuration that this writes gives the same one, which is checked before it is
returned. Exercised by `pytest tests/unit/loading/test_hf_export.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.loading.safetensors_writer import write_json, write_safetensors
from hasten.core.models import DecoderConfig, weight_specs
from hasten.core.models.rope import make_rope
from hasten.kernels.ops import Activation
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    from hasten.core.loading.model import LoadedModel

_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "mistral": ("MistralForCausalLM", "mistral"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
_ACTIVATIONS = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu_pytorch_tanh"}


def export_config(config: DecoderConfig, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """The JSON object. Raises LoadError for what the format cannot say (scaled rotary angles)."""
    family = _family(config)
    if family not in _ARCHITECTURES:
        raise LoadError(f"writing models of the family {family} as config.json is not supported")
    architecture, model_type = _ARCHITECTURES[family]
    exported: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": _rope_theta(config),
        "hidden_act": _ACTIVATIONS[config.activation],
        "tie_word_embeddings": config.tie_word_embeddings,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    if family in ("llama", "qwen3"):
        exported["attention_bias"] = config.qkv_bias
    if family == "llama":
        exported["mlp_bias"] = config.mlp_bias
    if family == "mistral":
        exported["sliding_window"] = config.windows[0]
    if eos_token_ids:
        exported["eos_token_id"] = list(eos_token_ids)
    _check(exported, config, family)
    return exported


def export_model(model: LoadedModel, folder: Path) -> None:
    """Write `config.json` and the weights, dequantised to bf16, into `folder`. Raises LoadError."""
    write_json(folder / "config.json", export_config(model.config, model.eos_token_ids))
    tensors: dict[str, npt.NDArray[Any]] = {}
    for spec in weight_specs(model.config):
        values = model.weights[spec.name].dequantize().astype(bfloat16)
        ends = np.cumsum([part.shape[0] for part in spec.parts])[:-1]
        for part, piece in zip(spec.parts, np.split(values, ends), strict=True):
            tensors[part.key] = piece
    write_safetensors(folder / "model.safetensors", tensors)


def _family(config: DecoderConfig) -> str:
    """GGUF calls Mistral's models llama too; a window tells them apart."""
    return "mistral" if config.family == "llama" and config.windows[0] else config.family


def _rope_theta(config: DecoderConfig) -> float:
    """The base whose powers the frequencies are."""
    rope = config.rope
    if rope.rotary_dim != config.head_size:
        raise LoadError("config.json cannot say that only part of a head is rotated")
    if len(rope.inv_freq) == 1:
        return 10_000.0
    power = -2 * (len(rope.inv_freq) - 1) / rope.rotary_dim
    theta = rope.inv_freq[-1] ** (1 / power)
    digits = 5 - math.ceil(math.log10(theta))
    for candidate in (round(theta, digits), float(round(theta)), theta):
        if make_rope(rope.rotary_dim, candidate) == rope:
            return candidate
    raise LoadError("config.json cannot say these rotary frequencies: no base gives them")


def _check(exported: dict[str, Any], config: DecoderConfig, family: str) -> None:
    read = read_hf_config(Fields(exported, "config.json"))
    for field in config.__slots__:
        wanted = family if field == "family" else getattr(config, field)
        if getattr(read, field) != wanted:
            raise LoadError(f"config.json cannot say that {field} is {wanted}")
