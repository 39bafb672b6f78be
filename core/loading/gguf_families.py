"""The architectures of GGUF files: what their metadata does not say.

A family is a row of data: what converters to the format, and the programs that read it, take for
granted. Exercised by `pytest tests/unit/loading/test_gguf.py tests/cpu/models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.core.models.config import NormPlacement
from hasten.kernels.ops import Activation


@dataclass(frozen=True, slots=True)
class GGUFFamily:
    """One architecture.

    Norm weights are stored as they multiply (converters add Gemma's 1). `square_heads` are numbers
    of layers whose attention is scaled by (hidden_size / num_heads) ** -0.5 instead of by the head
    size: the largest Gemmas. `factors` maps those metadata fields that the family knows to the
    fields of `DecoderConfig` that they set; `logit_divisor` is the reciprocal of its field.
    """

    interleaved: bool = False  # rows of q and k, see `gguf_source`
    activation: Activation = Activation.SILU
    qk_norm: bool = False
    joint_qk_norm: bool = False
    norms: NormPlacement = NormPlacement.BEFORE
    fused_projections: bool = False
    has_experts: bool = False
    requires_experts: bool = False

    window_period: int | None = None  # all but every n-th layer have the window
    local_rope_theta: float | None = None
    unrotated_period: int | None = None
    long_factors: bool = False  # LongRoPE, by tensors

    scales_embeddings: bool = False
    square_heads: frozenset[int] = frozenset()
    factors: Mapping[str, str] = field(default_factory=dict)
    logit_divisor: str | None = None


_SOFT_CAPS = {
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "logit_softcap",
}

FAMILIES = {
    "llama": GGUFFamily(interleaved=True, has_experts=True),
    "qwen2": GGUFFamily(),
    "qwen3": GGUFFamily(qk_norm=True),
    "qwen3moe": GGUFFamily(qk_norm=True, has_experts=True, requires_experts=True),
    "smollm3": GGUFFamily(interleaved=True, unrotated_period=4),
    "gemma": GGUFFamily(activation=Activation.GELU_TANH, scales_embeddings=True),
    "gemma2": GGUFFamily(
        activation=Activation.GELU_TANH,
        norms=NormPlacement.AROUND,
        window_period=2,
        scales_embeddings=True,
        square_heads=frozenset({46}),
        factors=_SOFT_CAPS,
    ),
    "gemma3": GGUFFamily(
        activation=Activation.GELU_TANH,
        qk_norm=True,
        norms=NormPlacement.AROUND,
        window_period=6,
        local_rope_theta=10_000.0,
        scales_embeddings=True,
        square_heads=frozenset({62}),
        factors=_SOFT_CAPS,
    ),
    "phi3": GGUFFamily(fused_projections=True, long_factors=True),
    "olmo2": GGUFFamily(joint_qk_norm=True, norms=NormPlacement.AFTER),
    "granite": GGUFFamily(
        interleaved=True,
        factors={
            "attention.scale": "attention_scale",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
        },
        logit_divisor="logit_scale",
    ),
}
"""By `general.architecture`; Mistral, SmolLM2 and Mixtral are `llama` too."""
