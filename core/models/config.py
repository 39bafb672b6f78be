"""What a decoder model is, in numbers: the form that every file format is read into.

Not here: reading files (`hasten.core.loading`), recording ops (`hasten.core.models.decoder`).
Exercised by `pytest tests/unit/loading tests/cpu/models`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.kernels.ops import Activation, Rope

MAX_LAYERS = 4096
MAX_HEAD_SIZE = 4096
"""Beyond these a number is damage, and believing it would cost memory before anything else."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer: RMS norms, rotary positions, grouped-query attention, gated MLP.

    `windows` holds, per layer, how many most recent tokens attention reads (None: all of them).
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

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads: {self.num_kv_heads} and {self.num_heads}"
            )
        if self.rope.rotary_dim > self.head_size:
            raise ValueError(
                f"the rotary dimension {self.rope.rotary_dim} exceeds head_size {self.head_size}"
            )
        if len(self.windows) != self.num_layers:
            raise ValueError(f"{len(self.windows)} attention windows for {self.num_layers} layers")

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_size
