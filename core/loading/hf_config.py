"""`config.json` of Hugging Face directories as a `DecoderConfig`.

Reads what transformers 4 and 5 write. What an architecture's published code fixes is listed in
`hf_families`; everything else must be in the file. Rotary positions are read by `hf_rope`.
Exercised by `pytest tests/unit/loading/test_hf_config.py`.
"""

from __future__ import annotations

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.hf_families import FAMILIES, ExpertFields, Family
from hasten.core.loading.hf_rope import read_ropes
from hasten.core.models.config import MAX_EXPERTS, MAX_HEAD_SIZE, MAX_LAYERS, DecoderConfig, Experts
from hasten.kernels.ops import Activation

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}


def read_hf_config(config: Fields, max_model_len: int | None = None) -> DecoderConfig:
    """The numbers of the model, for requests of at most `max_model_len` tokens (None: the model's
    own bound), which LongRoPE models depend on.

    Raises LoadError naming the field that is missing, mistyped or not supported.
    """
    family = _family(config)
    try:
        return _read_config(config, family, max_model_len)
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(f"{config.where}: {error}") from error


def _family(config: Fields) -> Family:
    architectures = config.strings("architectures")
    for name in architectures:
        if name in FAMILIES:
            return FAMILIES[name]
    raise config.error(
        "architectures",
        f"is {architectures}, which is not supported; supported: {', '.join(FAMILIES)} "
        "(others run with --model-impl transformers)",
    )


def _read_config(config: Fields, family: Family, max_model_len: int | None) -> DecoderConfig:
    config.refuse_unless("use_mrope", (False,))
    config.refuse_unless("use_bidirectional_attention", (False,))
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    num_layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    head_size = _head_size(config, family, hidden_size, num_heads)
    has_attention_bias = _flag(config, "attention_bias")
    rope, window_rope = read_ropes(config, family, head_size, max_model_len)
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
        rope=rope,
        windows=_windows(config, family, num_layers),
        activation=_activation(config, family),
        tie_word_embeddings=_flag(config, "tie_word_embeddings", family.ties_embeddings),
        qkv_bias=has_attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=has_attention_bias and family.qkv_bias is None,
        mlp_bias=family.has_mlp_bias_field and _flag(config, "mlp_bias"),
        qk_norm=family.qk_norm,
        joint_qk_norm=family.joint_qk_norm,
        norms=family.norms,
        norm_offset=family.norm_offset,
        fused_projections=family.fused_projections,
        experts=None if family.experts is None else _experts(config, family.experts),
        window_rope=window_rope,
        unrotated_layers=_unrotated_layers(config, family, num_layers),
        attention_scale=_attention_scale(config, family),
        attention_softcap=_optional_number(config, family.attention_softcap_field),
        logit_softcap=_optional_number(config, family.logit_softcap_field),
        logit_scale=1 / _factor(config, family.logit_divisor_field),
        embedding_multiplier=hidden_size**0.5
        if family.scales_embeddings
        else _factor(config, family.embedding_multiplier_field),
        residual_multiplier=_factor(config, family.residual_multiplier_field),
    )


def _flag(config: Fields, name: str, default: bool = False) -> bool:
    return config.boolean(name) if name in config else default


def _optional_number(config: Fields, name: str | None) -> float | None:
    """A number that may be absent or null; None also where the family has no such field."""
    return config.number(name) if name is not None and name in config else None


def _factor(config: Fields, name: str | None) -> float:
    """A number that must be there; 1 where the family has no such field."""
    return 1.0 if name is None else config.number(name)


def _attention_scale(config: Fields, family: Family) -> float | None:
    if family.attention_scale_field is not None:
        return config.number(family.attention_scale_field)
    if family.query_scalar_field is not None:
        return float(config.number(family.query_scalar_field) ** -0.5)
    return None


def _head_size(config: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if "head_dim" in config or family.requires_head_size:
        return config.integer("head_dim", maximum=MAX_HEAD_SIZE)
    if hidden_size % num_heads or hidden_size // num_heads > MAX_HEAD_SIZE:
        raise config.error("num_attention_heads", f"is {num_heads} for hidden_size {hidden_size}")
    return hidden_size // num_heads


def _activation(config: Fields, family: Family) -> Activation:
    fields = family.activation_fields
    name = next((name for name in fields if name in config), fields[0])
    config.refuse_unless(name, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[config.text(name)]


def _experts(config: Fields, fields: ExpertFields) -> Experts:
    config.refuse_unless("decoder_sparse_step", (1,))
    config.refuse_unless("mlp_only_layers", ([],))
    names = fields.num_experts
    name = next((name for name in names if name in config), names[0])
    renormalize = fields.renormalize
    return Experts(
        num_experts=config.integer(name, maximum=MAX_EXPERTS),
        num_active=config.integer("num_experts_per_tok", maximum=MAX_EXPERTS),
        intermediate_size=config.integer(fields.intermediate_size),
        renormalize=_flag(config, renormalize) if isinstance(renormalize, str) else renormalize,
        tensor_names=fields.tensor_names,
    )


def _windows(config: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    uses_window = "sliding_window" in config and (
        family.windows_every_layer or _flag(config, "use_sliding_window")
    )
    window = config.integer("sliding_window") if uses_window else None
    if "layer_types" in config:
        return _windows_of_types(config, window, num_layers)
    if window is None:
        return (None,) * num_layers
    if family.window_period is not None:
        return _periodic_windows(config, family, window, num_layers)
    if family.windows_every_layer:
        return (window,) * num_layers
    num_full = config.integer("max_window_layers", minimum=0)
    return tuple(None if idx < num_full else window for idx in range(num_layers))


def _periodic_windows(
    config: Fields, family: Family, window: int, num_layers: int
) -> tuple[int | None, ...]:
    period, field = family.window_period, family.window_period_field
    if field is not None and field in config:
        period = config.integer(field)
    assert period is not None
    return tuple(window if (idx + 1) % period else None for idx in range(num_layers))


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


def _unrotated_layers(config: Fields, family: Family, num_layers: int) -> frozenset[int]:
    """`no_rope_layers` says 1 for layers that do rotate, whatever its name suggests."""
    if family.unrotated_period is None:
        return frozenset()
    if "no_rope_layers" in config:
        flags = config.integers("no_rope_layers")
        if len(flags) != num_layers or set(flags) - {0, 1}:
            raise config.error("no_rope_layers", f"must be {num_layers} numbers, 0 or 1")
        return frozenset(idx for idx, rotates in enumerate(flags) if not rotates)
    period = family.unrotated_period
    if "no_rope_layer_interval" in config:
        period = config.integer("no_rope_layer_interval")
    return frozenset(range(period - 1, num_layers, period))
