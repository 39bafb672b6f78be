"""Inputs of fp8 weights, rounded to e4m3 as their scheme says and given back as fp32.

    token         s = max|x| / 448 of the row
    token_group   the same per group of 128 inputs (the last may be shorter)
    static        s is the weight's `input_scale`

x becomes s * e4m3(clamp(x / s, -448, 448)); where s would be 0 it is 1. The product then runs on
these in fp32: e4m3 numbers multiply exactly, so this is the arithmetic of an fp8 product that
accumulates in fp32, up to the order of its sums. Exercised by `pytest tests/cpu/quant`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from hasten.kernels.weights import FP8_GROUP, ActivationScheme, Fp8Weight

E4M3_MAX = 448.0

Quantizer = Callable[[torch.Tensor], torch.Tensor]
"""[num_rows, in] of any dtype to [num_rows, in] fp32."""


def make_quantizer(weight: Fp8Weight) -> Quantizer | None:
    """How the inputs of `weight` are rounded; None where they are not."""
    if weight.activations is ActivationScheme.TOKEN:
        return _round_rows
    if weight.activations is ActivationScheme.TOKEN_GROUP:
        return _round_groups
    if weight.activations is ActivationScheme.STATIC:
        assert weight.input_scale is not None
        scale = torch.tensor(weight.input_scale, dtype=torch.float32)
        return lambda x: _round(x.float(), scale.to(x.device))
    return None


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Clamped to +-448, for conversions differ in what they make of more; nearest even."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def dynamic_scale(x: torch.Tensor) -> torch.Tensor:
    """max|x| / 448 over the last dimension, kept as one column; 1 where all is 0."""
    scale = x.abs().amax(dim=-1, keepdim=True) / E4M3_MAX
    return torch.where(scale == 0, torch.ones_like(scale), scale)


def _round(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return to_e4m3(x / scale).float() * scale


def _round_rows(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return _round(wide, dynamic_scale(wide))


def _round_groups(x: torch.Tensor) -> torch.Tensor:
    width = x.shape[1]
    padded = torch.nn.functional.pad(x.float(), (0, -width % FP8_GROUP))
    grouped = padded.view(len(x), -1, FP8_GROUP)
    return _round(grouped, dynamic_scale(grouped)).view(padded.shape)[:, :width].contiguous()
