"""`config.json` of Hugging Face directories as a `DecoderConfig`.

Reads what transformers 4 and 5 write: `rope_theta` and `rope_scaling`, or `rope_parameters`. What
an architecture's published code fixes when a field is absent is listed here, family by family;
everything else must be there. Exercised by `pytest tests/unit/loading/test_hf_config.py`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.models.config import MAX_HEAD_SIZE, MAX_LAYERS, DecoderConfig
from hasten.core.models.rope import LinearScaling, Llama3Scaling, Scaling, make_rope
from hasten.kernels.ops import Activation, Rope

logger = logging.getLogger(__name__)

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
_ROPE_TYPES = ("default", "linear", "llama3")
_ROPE_FIELDS = {
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
}


@dataclass(frozen=True, slots=True)
class _Family:
    """What tells an architecture apart beyond its numbers."""

    name: str
    default_rope_theta: float
    qkv_bias: bool | None  # None: the field `attention_bias` says, for o as well
    has_mlp_bias_field: bool = False
    qk_norm: bool = False
    windows_every_layer: bool = False  # else windows need `use_sliding_window`
    derives_head_size: bool = True  # from hidden_size, when `head_dim` is absent


_FAMILIES = {
    "LlamaForCausalLM": _Family("llama", 10_000.0, None, has_mlp_bias_field=True),
    "MistralForCausalLM": _Family("mistral", 10_000.0, qkv_bias=False, windows_every_layer=True),
    "Qwen2ForCausalLM": _Family("qwen2", 10_000.0, qkv_bias=True),
    "Qwen3ForCausalLM": _Family("qwen3", 10_000.0, None, qk_norm=True, derives_head_size=False),
}


def read_hf_config(config: Fields) -> DecoderConfig:
    """Raises LoadError naming the field that is missing, mistyped or not supported."""
    family = _family(config)
    try:
        return _read_config(config, family)
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{config.where}: {error}") from error


def _family(config: Fields) -> _Family:
    architectures = config.strings("architectures")
    for name in architectures:
        if name in _FAMILIES:
            return _FAMILIES[name]
    raise config.error(
        "architectures",
        f"is {architectures}, which is not supported; supported: {', '.join(_FAMILIES)}",
    )


def _read_config(config: Fields, family: _Family) -> DecoderConfig:
    config.refuse_unless("use_mrope", (False,))
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    head_size = _head_size(config, family, hidden_size, num_heads)
    has_attention_bias = "attention_bias" in config and config.boolean("attention_bias")
    return DecoderConfig(
        family=family.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads")
        if "num_key_value_heads" in config
        else num_heads,
        head_size=head_size,
        max_position_embeddings=config.integer("max_position_embeddings"),
        rms_norm_eps=config.number("rms_norm_eps"),
        rope=_rope(config, family, head_size),
        windows=_windows(config, family, num_layers),
        activation=_activation(config),
        tie_word_embeddings="tie_word_embeddings" in config
        and config.boolean("tie_word_embeddings"),
        qkv_bias=has_attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=has_attention_bias and family.qkv_bias is None,
        mlp_bias=family.has_mlp_bias_field and "mlp_bias" in config and config.boolean("mlp_bias"),
        qk_norm=family.qk_norm,
    )


def _head_size(config: Fields, family: _Family, hidden_size: int, num_heads: int) -> int:
    if "head_dim" in config or not family.derives_head_size:
        return config.integer("head_dim", maximum=MAX_HEAD_SIZE)
    if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_SIZE:
        raise config.error("num_attention_heads", f"is {num_heads} for hidden_size {hidden_size}")
    return hidden_size // num_heads


def _activation(config: Fields) -> Activation:
    config.refuse_unless("hidden_act", tuple(_ACTIVATIONS))
    return _ACTIVATIONS[config.text("hidden_act")]


def _windows(config: Fields, family: _Family, num_layers: int) -> tuple[int | None, ...]:
    uses_window = "sliding_window" in config and (
        family.windows_every_layer
        or ("use_sliding_window" in config and config.boolean("use_sliding_window"))
    )
    window = config.integer("sliding_window") if uses_window else None
    if "layer_types" in config:
        return _windows_of_types(config, window, num_layers)
    if window is None or family.windows_every_layer:
        return (window,) * num_layers
    num_full = config.integer("max_window_layers", minimum=0)
    return tuple(None if idx < num_full else window for idx in range(num_layers))


def _windows_of_types(
    config: Fields, window: int | None, num_layers: int
) -> tuple[int | None, ...]:
    types = config.strings("layer_types")
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise config.error("layer_types", f"holds {unknown.pop()!r}, which is not supported")
    if len(types) != num_layers:
        raise config.error("layer_types", f"has {len(types)} entries for {num_layers} layers")
    if window is None and "sliding_attention" in types:
        raise config.error("sliding_window", "is missing, though layer_types asks for it")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _rope(config: Fields, family: _Family, head_size: int) -> Rope:
    if "rope_parameters" in config:
        rope = config.nested("rope_parameters")
        owners = [rope, config]
        scaling = _scaling(rope)
    else:
        owners = [config]
        scaling = _scaling(config.nested("rope_scaling")) if "rope_scaling" in config else None
    share = _first_number(owners, "partial_rotary_factor")
    theta = _first_number(owners, "rope_theta")
    if theta is None:
        theta = family.default_rope_theta
        logger.info("rope_theta is absent: for %s that means %g", family.name, theta)
    return make_rope(head_size if share is None else int(head_size * share), theta, scaling)


def _first_number(owners: list[Fields], name: str) -> float | None:
    return next((fields.number(name) for fields in owners if name in fields), None)


def _scaling(fields: Fields) -> Scaling | None:
    name = next((name for name in ("rope_type", "type") if name in fields), None)
    kind = "default"
    if name is not None:
        fields.refuse_unless(name, _ROPE_TYPES)
        kind = fields.text(name)
    fields.refuse_others(_ROPE_FIELDS)
    if kind == "linear":
        return LinearScaling(fields.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            fields.number("factor"),
            fields.number("low_freq_factor"),
            fields.number("high_freq_factor"),
            fields.integer("original_max_position_embeddings"),
        )
    return None
