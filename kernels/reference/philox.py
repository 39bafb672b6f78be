"""Philox4x32-10 in torch (64-bit integers), and the Gumbel noise of sampling made from it.

The definition, with sources, is `kernels.philox`; this one runs on tensors of any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hasten.kernels.philox import MULTIPLIERS, NUM_ROUNDS, WEYL, WORD_MASK

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """What the noise of one logit row depends on, besides the token."""

    seed: int
    position: int
    sample_idx: int


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four random words for each counter; words are int64 tensors of values below 2^32."""
    first, second, third, fourth = counter
    low, high = key
    for _ in range(NUM_ROUNDS):
        # The products exceed 63 bits: their upper words survive as bits 32..63 of the wrapped sum.
        left, right = first * MULTIPLIERS[0], third * MULTIPLIERS[1]
        first, second, third, fourth = (
            (right >> 32) & WORD_MASK ^ second ^ low,
            right & WORD_MASK,
            (left >> 32) & WORD_MASK ^ fourth ^ high,
            left & WORD_MASK,
        )
        low, high = (low + WEYL[0]) & WORD_MASK, (high + WEYL[1]) & WORD_MASK
    return first, second, third, fourth


def gumbel_noise_all(key: NoiseKey, num_tokens: int, device: torch.device) -> torch.Tensor:
    """The noise of token ids 0 .. num_tokens - 1, [num_tokens] fp64."""
    quads = torch.arange(-(-num_tokens // 4), dtype=torch.int64, device=device)
    words = torch.stack(_words(key, quads), dim=-1)
    return _gumbel(words.flatten()[:num_tokens])


def gumbel_noise(key: NoiseKey, token_ids: torch.Tensor) -> torch.Tensor:
    """The noise of some token ids [n] int64, [n] fp64."""
    words = torch.stack(_words(key, token_ids // 4), dim=-1)
    return _gumbel(words.gather(1, (token_ids % 4).unsqueeze(1)).squeeze(1))


def _words(key: NoiseKey, quads: torch.Tensor) -> Words:
    counter = (
        torch.full_like(quads, key.position),
        quads,
        torch.full_like(quads, key.sample_idx),
        torch.zeros_like(quads),
    )
    return philox4x32(counter, (key.seed & WORD_MASK, key.seed >> 32))


def _gumbel(words: torch.Tensor) -> torch.Tensor:
    uniform = words.double().add_(0.5).div_(2.0**32)
    return uniform.log_().neg_().log_().neg_()
