"""Foreign nodes: ops of a step program that run somebody else's torch module.

A model that nobody recorded as ops still runs in a step, as two nodes around the gather of the rows
that want logits. It keeps its weights; of its computation only attention is ours, which it calls
back for, layer after layer:

    foreign_body   token ids, positions -> hidden states     (calls attend(q, k, v) per layer)
    gather_rows
    foreign_head   hidden states -> logits

Only the reference backend runs them. Exercised by `pytest tests/cpu/models/test_transformers.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from hasten.kernels.ops import Op, PagedAttention, RopeStoreKV
from hasten.kernels.program import Buffer, Rows, WeightName

if TYPE_CHECKING:
    import torch

Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Attention of the next layer: q [T, num_heads, head_size], k and v [T, num_kv_heads, head_size],
rotated as the model rotates them -> [T, num_heads, head_size]."""


class ForeignModule(Protocol):
    """A model in torch whose rows depend on each other through attention alone."""

    def body(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Hidden states [T, width] of tokens of any requests laid end to end."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [L, vocab_size]."""
        ...


@dataclass(frozen=True, slots=True)
class ForeignAttention:
    """One layer's attention: its q | k | v are stored by one op and read by the other."""

    store: RopeStoreKV
    attention: PagedAttention


@dataclass(frozen=True, slots=True)
class ForeignBody(Op):
    """out = module.body(token_ids, positions), attention being that of `layers`, in order."""

    name: ClassVar[str] = "foreign_body"
    module: ForeignModule
    out: Buffer
    layers: tuple[ForeignAttention, ...]

    def reads(self) -> tuple[Buffer, ...]:
        return ()

    def writes(self) -> tuple[Buffer, ...]:
        used = (buffer for layer in self.layers for buffer in _buffers(layer))
        return tuple(dict.fromkeys((self.out, *used)))

    def weights(self) -> tuple[WeightName, ...]:
        return tuple(name for layer in self.layers for name in layer.attention.weights())

    def check(self) -> None:
        for layer in self.layers:
            layer.store.check()
            layer.attention.check()


@dataclass(frozen=True, slots=True)
class ForeignHead(Op):
    """logits = module.head(x)."""

    name: ClassVar[str] = "foreign_head"
    module: ForeignModule
    x: Buffer
    logits: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.logits,)

    def check(self) -> None:
        if self.logits.rows is not Rows.LOGITS or self.x.rows is not Rows.LOGITS:
            raise ValueError("foreign_head: x and logits must have L rows")


def _buffers(layer: ForeignAttention) -> tuple[Buffer, ...]:
    return (layer.attention.qkv, layer.attention.out)
