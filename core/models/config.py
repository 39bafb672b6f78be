"""What a decoder model is, in numbers: the form that every file format is read into.

Not here: reading files (`hasten.core.loading`), recording ops (`hasten.core.models.decoder`).
Exercised by `pytest tests/unit/loading tests/cpu/models`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hasten.kernels.ops import Activation, Rope

MAX_LAYERS = 4096
MAX_HEAD_SIZE = 4096
MAX_EXPERTS = 4096
"""Beyond these a number is damage, and believing it would cost memory before anything else."""

NO_ROPE = Rope(())
"""What layers without positions have: nothing is rotated."""


class NormPlacement(enum.Enum):
    """Where the RMS norms of a block (attention, MLP) stand."""

    BEFORE = "before"  # x + block(norm(x)): Llama and most others
    AFTER = "after"  # x + norm(block(x)): OLMo 2
    AROUND = "around"  # x + norm(block(norm(x))): Gemma 2 and 3


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in the place of every MLP.

    Each token goes through the `num_active` of `num_experts` gated MLPs that its router finds most
    likely. Their outputs are added with the router's probabilities (softmax over all experts),
    which `renormalize` scales to a sum of 1. `tensor_names` is how the checkpoint names them:
    module of the block, then gate, up and down projection of an expert.
    """

    num_experts: int
    num_active: int
    intermediate_size: int
    renormalize: bool
    tensor_names: tuple[str, str, str, str] = ("mlp", "gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts <= MAX_EXPERTS:
            raise ValueError(f"num_experts must be from 1 to {MAX_EXPERTS}, got {self.num_experts}")
        if not 1 <= self.num_active <= self.num_experts:
            raise ValueError(f"{self.num_active} active experts of {self.num_experts}")
        if self.intermediate_size < 1:
            raise ValueError(f"intermediate_size of experts is {self.intermediate_size}")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer: RMS norms, rotary positions, grouped-query attention, gated MLPs.

    Per layer: `windows` holds how many most recent tokens attention reads (None: all of them);
    layers with a window rotate by `window_rope`, where that is given; those in `unrotated_layers`
    do not rotate at all.

    `norm_offset` is what the checkpoint leaves out of its norm weights (Gemma multiplies by 1 + w).
    `qk_norm` normalises each head of q and k, `joint_qk_norm` all heads together. Attention scores
    are multiplied by `attention_scale` (None: head_size ** -0.5), embeddings and what each block
    adds by their multipliers, logits by `logit_scale`; soft caps are c * tanh(x / c).
    `fused_projections`: the checkpoint holds q | k | v and gate | up as one tensor each.

    Raises ValueError, naming the field, when the numbers do not fit together.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    activation: Activation = Activation.SILU
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    joint_qk_norm: bool = False
    norms: NormPlacement = NormPlacement.BEFORE
    norm_offset: float = 0.0
    fused_projections: bool = False
    experts: Experts | None = None
    window_rope: Rope | None = None
    unrotated_layers: frozenset[int] = frozenset()
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads: {self.num_kv_heads} and {self.num_heads}"
            )
        for rope in (self.rope, self.window_rope or self.rope):
            if rope.rotary_dim > self.head_size:
                raise ValueError(
                    f"the rotary dimension {rope.rotary_dim} exceeds head_size {self.head_size}"
                )
        if len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} attention windows for {self.num_layers} layers")
        if self.experts is not None and self.mlp_bias:
            raise ValueError("experts with biases are not supported")

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def qkv_width(self) -> int:
        return self.q_width + 2 * self.kv_width

    def rope_of(self, layer_idx: int) -> Rope:
        """What a layer rotates its q and k by."""
        if layer_idx in self.unrotated_layers:
            return NO_ROPE
        if self.window_rope is not None and self.windows[layer_idx] is not None:
            return self.window_rope
        return self.rope
