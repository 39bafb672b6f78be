"""An EAGLE-3 head in torch, unrolled over drafting passes as it will be run.

Slot t holds the pair (feature of t - 1, token t) and guesses token t + 1. Pass k of the unrolling
is what drafting does k tokens ahead of the last feature: slot s takes the hidden state that pass
k - 1 left at slot s - 1, and attends to what drafting would find in the cache,

    pass 1    keys of pass 1 at slots ..s
    pass 2    keys of pass 1 at slots ..s - 1, of pass 2 at s
    pass 3    keys of pass 1 at slots ..s - 2, of pass 2 at s - 1, of pass 3 at s

with the text's own tokens. Source: EAGLE-3's training-time test (Li et al., 2025), section 3.2.
Exercised by `pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (as everybody calls it)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.models import DecoderConfig


@dataclass(frozen=True, slots=True)
class HeadShape:
    """A head's layer, in the numbers of `layer`; it guesses among `draft_vocab_size` tokens."""

    layer: DecoderConfig
    num_features: int
    draft_vocab_size: int


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


@dataclass(slots=True)
class _Keys:
    """K and V of each pass so far: [heads, T, head_size]."""

    k: list[torch.Tensor]
    v: list[torch.Tensor]


class EagleHead(nn.Module):
    """The trained part; names of parameters are those of the published layout."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        layer, hidden = shape.layer, shape.layer.hidden_size
        eps = layer.rms_norm_eps
        self.shape = shape
        self.fc = nn.Linear(shape.num_features * hidden, hidden, bias=False)
        self.input_layernorm = RmsNorm(hidden, eps)
        self.hidden_norm = RmsNorm(hidden, eps)
        self.post_attention_layernorm = RmsNorm(hidden, eps)
        self.qkv = nn.Linear(2 * hidden, layer.qkv_width, bias=False)
        self.o_proj = nn.Linear(layer.q_width, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * layer.intermediate_size, bias=False)
        self.down_proj = nn.Linear(layer.intermediate_size, hidden, bias=False)
        self.norm = RmsNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, shape.draft_vocab_size, bias=False)
        angles = torch.arange(layer.max_position_embeddings)[:, None] * torch.tensor(
            layer.rope.inv_freq
        )
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def unroll(
        self, embedded: torch.Tensor, features: torch.Tensor, num_passes: int
    ) -> Iterator[torch.Tensor]:
        """The normed hidden states of each pass, [T, hidden]: what `lm_head` reads.

        `embedded` [T, hidden] are the tokens; features [T, num_features * hidden] those of the
        tokens before them. Slot s of pass k is of use from s = k - 1 on.
        """
        embed_normed = self.input_layernorm(embedded)
        hidden = self.fc(features)
        keys = _Keys([], [])
        for _ in range(num_passes):
            hidden = self._layer(embed_normed, hidden, keys)
            yield self.norm(hidden)
            # Slot s of the next pass takes what this one left at s - 1.
            hidden = F.pad(hidden, (0, 0, 1, 0))[:-1]

    def _layer(self, embed_normed: torch.Tensor, hidden: torch.Tensor, keys: _Keys) -> torch.Tensor:
        qkv = self.qkv(torch.cat([embed_normed, self.hidden_norm(hidden)], dim=-1))
        hidden = hidden + self.o_proj(self._attend(qkv, keys))
        gate, up = self.gate_up(self.post_attention_layernorm(hidden)).chunk(2, dim=-1)
        out: torch.Tensor = hidden + self.down_proj(F.silu(gate) * up)
        return out

    def _attend(self, qkv: torch.Tensor, keys: _Keys) -> torch.Tensor:
        """[T, q_width]; adds this pass's K and V to `keys`."""
        layer = self.shape.layer
        heads = qkv.view(len(qkv), -1, layer.head_size).transpose(0, 1)
        q, k, v = torch.split(heads, [layer.num_heads, layer.num_kv_heads, layer.num_kv_heads])
        shared = layer.num_heads // layer.num_kv_heads
        q = self._rotate(q)
        keys.k.append(self._rotate(k).repeat_interleave(shared, 0))
        keys.v.append(v.repeat_interleave(shared, 0))
        scale, ahead = layer.head_size**-0.5, len(keys.k) - 1
        scores = torch.matmul(q, keys.k[0].transpose(1, 2)).float() * scale
        allowed = torch.ones_like(scores[0], dtype=torch.bool).tril(-ahead)
        scores = scores.masked_fill(~allowed, float("-inf"))
        # Pass i was at slot s - (ahead - i) where this one is at s.
        chained = [self._shifted(keys.k[i], ahead - i) for i in range(1, ahead + 1)]
        own = [(q * k_i).sum(-1, keepdim=True).float() * scale for k_i in chained]
        weights = torch.softmax(torch.cat([scores, *own], dim=-1), dim=-1).to(v.dtype)
        length = len(qkv)
        out = torch.matmul(weights[..., :length], keys.v[0])
        for i in range(1, ahead + 1):
            column = weights[..., length + i - 1 : length + i]
            out = out + column * self._shifted(keys.v[i], ahead - i)
        return out.transpose(0, 1).reshape(length, -1)

    @staticmethod
    def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
        """Heads [heads, T, size], with slot s - by at slot s."""
        return x if by == 0 else F.pad(x, (0, 0, by, 0))[:, :-by]

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        first, second = x.float().chunk(2, dim=-1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        return turned.to(x.dtype)
