"""Frequencies of the rotary position embedding, with the scalings that checkpoints ask for.

Frequencies are computed in float32 in the order that the published implementations use, because a
difference in the last bit grows with the position. Sources: RoFormer (Su et al., 2021); linear
interpolation (Chen et al., 2023); the `llama3` scaling as published with Llama 3.1.
Exercised by `pytest tests/unit/loading/test_rope.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hasten.kernels.ops import Rope

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, the middle interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


Scaling = LinearScaling | Llama3Scaling


def make_rope(rotary_dim: int, theta: float, scaling: Scaling | None = None) -> Rope:
    """The rotary embedding of `rotary_dim` columns of each head. Raises ValueError when odd."""
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"the rotary dimension must be even and positive, got {rotary_dim}")
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    inv_freq = np.float32(1.0) / np.power(np.float32(theta), exponents)
    if isinstance(scaling, LinearScaling):
        inv_freq = inv_freq / np.float32(scaling.factor)
    elif isinstance(scaling, Llama3Scaling):
        inv_freq = _scale_llama3(inv_freq, scaling)
    return Rope(tuple(inv_freq.tolist()))


def divide_frequencies(rope: Rope, divisors: F32) -> Rope:
    """`rope` with each frequency divided by a factor (as a GGUF's `rope_freqs` tensor asks)."""
    inv_freq = np.asarray(rope.inv_freq, np.float32) / divisors
    return Rope(tuple(inv_freq.tolist()), rope.scale)


def _scale_llama3(inv_freq: F32, scaling: Llama3Scaling) -> F32:
    original_len = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = np.float32(2 * math.pi) / inv_freq
    stretched = inv_freq / np.float32(scaling.factor)
    smooth = (np.float32(original_len) / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (1 - smooth) * stretched + smooth * inv_freq
    is_long = wavelength > original_len / low
    is_short = wavelength < original_len / high
    return np.where(is_long, stretched, np.where(is_short, inv_freq, blended)).astype(np.float32)
