"""The families of Hugging Face models: what their code fixes beyond what `config.json` says.

A family is a row of data. Where it says nothing, a field of `config.json` decides, or the family
works as Llama does. Exercised by `pytest tests/unit/loading/test_hf_config.py tests/cpu/models`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.models.config import NormPlacement

MIXTRAL_TENSORS = ("block_sparse_moe", "w1", "w3", "w2")


@dataclass(frozen=True, slots=True)
class ExpertFields:
    """Where a mixture of experts keeps its numbers.

    `num_experts` are names of the same field, old and new; `renormalize` is a field, or fixed.
    """

    num_experts: tuple[str, ...]
    intermediate_size: str
    renormalize: str | bool
    tensor_names: tuple[str, str, str, str] = ("mlp", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. A field name of None means that there is no such thing."""

    name: str
    rope_theta: float = 10_000.0  # where the file gives none
    qkv_bias: bool | None = None  # None: the field `attention_bias` says, for o as well
    has_mlp_bias_field: bool = False
    qk_norm: bool = False
    joint_qk_norm: bool = False
    norms: NormPlacement = NormPlacement.BEFORE
    norm_offset: float = 0.0
    fused_projections: bool = False
    ties_embeddings: bool = False  # where the file does not say
    requires_head_size: bool = False
    activation_fields: tuple[str, ...] = ("hidden_act",)
    experts: ExpertFields | None = None

    windows_every_layer: bool = False  # else windows need `use_sliding_window`
    window_period: int | None = None  # all but every n-th layer have a window
    window_period_field: str | None = None
    local_rope_theta: float | None = None  # of layers with a window, which no scaling concerns
    unrotated_period: int | None = None  # every n-th layer is not rotated

    scales_embeddings: bool = False  # by sqrt(hidden_size)
    attention_scale_field: str | None = None
    query_scalar_field: str | None = None  # attention is scaled by its value ** -0.5
    attention_softcap_field: str | None = None
    logit_softcap_field: str | None = None
    embedding_multiplier_field: str | None = None
    residual_multiplier_field: str | None = None
    logit_divisor_field: str | None = None


FAMILIES = {
    "LlamaForCausalLM": Family("llama", has_mlp_bias_field=True),
    "MistralForCausalLM": Family("mistral", qkv_bias=False, windows_every_layer=True),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True),
    "Qwen3ForCausalLM": Family("qwen3", qk_norm=True, requires_head_size=True),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        rope_theta=2_000_000.0,
        has_mlp_bias_field=True,
        ties_embeddings=True,
        unrotated_period=4,
    ),
    "GemmaForCausalLM": Family(
        "gemma",
        norm_offset=1.0,
        ties_embeddings=True,
        requires_head_size=True,
        activation_fields=("hidden_activation", "hidden_act"),
        scales_embeddings=True,
    ),
    "Gemma2ForCausalLM": Family(
        "gemma2",
        norms=NormPlacement.AROUND,
        norm_offset=1.0,
        ties_embeddings=True,
        requires_head_size=True,
        activation_fields=("hidden_activation",),
        windows_every_layer=True,
        window_period=2,
        scales_embeddings=True,
        query_scalar_field="query_pre_attn_scalar",
        attention_softcap_field="attn_logit_softcapping",
        logit_softcap_field="final_logit_softcapping",
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3",
        rope_theta=1_000_000.0,
        qk_norm=True,
        norms=NormPlacement.AROUND,
        norm_offset=1.0,
        ties_embeddings=True,
        requires_head_size=True,
        activation_fields=("hidden_activation",),
        windows_every_layer=True,
        window_period=6,
        window_period_field="sliding_window_pattern",
        local_rope_theta=10_000.0,
        scales_embeddings=True,
        query_scalar_field="query_pre_attn_scalar",
        attention_softcap_field="attn_logit_softcapping",
        logit_softcap_field="final_logit_softcapping",
    ),
    "Phi3ForCausalLM": Family(
        "phi3", qkv_bias=False, fused_projections=True, windows_every_layer=True
    ),
    "Olmo2ForCausalLM": Family("olmo2", joint_qk_norm=True, norms=NormPlacement.AFTER),
    "GraniteForCausalLM": Family(
        "granite",
        has_mlp_bias_field=True,
        attention_scale_field="attention_multiplier",
        embedding_multiplier_field="embedding_multiplier",
        residual_multiplier_field="residual_multiplier",
        logit_divisor_field="logits_scaling",
    ),
    "MixtralForCausalLM": Family(
        "mixtral",
        rope_theta=1_000_000.0,
        qkv_bias=False,
        windows_every_layer=True,
        experts=ExpertFields(
            ("num_local_experts",), "intermediate_size", True, tensor_names=MIXTRAL_TENSORS
        ),
    ),
    "Qwen3MoeForCausalLM": Family(
        "qwen3moe",
        qk_norm=True,
        requires_head_size=True,
        experts=ExpertFields(
            ("num_experts", "num_local_experts"), "moe_intermediate_size", "norm_topk_prob"
        ),
    ),
}
"""By the name that `architectures` gives."""
