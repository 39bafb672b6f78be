"""Frequencies of the rotary position embedding, with the scalings that checkpoints ask for.

Frequencies are computed in float32 in the order that the published implementations use, because a
difference in the last bit grows with the position. Every scaling here gives a position one angle,
whatever the length of the text around it: K is cached, and a text must not depend on how it was
cut. Sources: RoFormer (Su et al., 2021); linear interpolation (Chen et al., 2023); the `llama3`
scaling as published with Llama 3.1; YaRN (Peng et al., 2023); LongRoPE (Ding et al., 2024).
Exercised by `pytest tests/unit/loading/test_rope.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Columns that turn more than `beta_fast` times in the original context are kept, those that
    turn less than `beta_slow` times are stretched by `factor`, the ones between are interpolated;
    cos and sin are multiplied by `attention_factor`.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the borders to whole columns


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """Each frequency is divided by a factor of its own; cos and sin are multiplied."""

    factors: tuple[float, ...]
    attention_factor: float


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


def make_rope(rotary_dim: int, theta: float, scaling: Scaling | None = None) -> Rope:
    """The rotary embedding of `rotary_dim` columns of each head.

    Raises ValueError when that is odd, or not what the scaling was made for.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"the rotary dimension must be even and positive, got {rotary_dim}")
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    periods = np.power(np.float32(theta), exponents)
    inv_freq = np.float32(1.0) / periods
    if isinstance(scaling, YarnScaling):
        return _rope(_scale_yarn(periods, theta, scaling), scaling.attention_factor)
    if isinstance(scaling, LongRopeScaling):
        return _rope(_scale_long(periods, scaling), scaling.attention_factor)
    if isinstance(scaling, LinearScaling):
        inv_freq = inv_freq / np.float32(scaling.factor)
    elif isinstance(scaling, Llama3Scaling):
        inv_freq = _scale_llama3(inv_freq, scaling)
    return _rope(inv_freq)


def divide_frequencies(rope: Rope, divisors: F32) -> Rope:
    """`rope` with each frequency divided by a factor (as a GGUF's `rope_freqs` tensor asks)."""
    inv_freq = np.asarray(rope.inv_freq, np.float32) / divisors
    return replace(rope, inv_freq=tuple(inv_freq.tolist()))


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """What the authors of YaRN recommend for cos and sin."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def long_attention_factor(factor: float, original_len: int) -> float:
    """What the authors of LongRoPE recommend for cos and sin."""
    return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original_len))


def _rope(inv_freq: F32, scale: float = 1.0) -> Rope:
    return Rope(tuple(inv_freq.tolist()), scale)


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


def _scale_yarn(periods: F32, theta: float, scaling: YarnScaling) -> F32:
    rotary_dim = 2 * len(periods)

    def column(num_turns: float) -> float:
        """Where a column turns so many times in the original context."""
        turns = scaling.original_max_position_embeddings / (num_turns * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(theta))

    low, high = column(scaling.beta_fast), column(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(len(periods), dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    stretched_share = np.clip(ramp, 0, 1)
    stretched = 1 / (np.float32(scaling.factor) * periods)
    kept_share = 1 - stretched_share
    inv_freq: F32 = stretched * (1 - kept_share) + kept_share / periods
    return inv_freq


def _scale_long(periods: F32, scaling: LongRopeScaling) -> F32:
    if len(scaling.factors) != len(periods):
        raise ValueError(f"{len(scaling.factors)} rotary factors for {len(periods)} frequencies")
    return np.float32(1.0) / (np.asarray(scaling.factors, np.float32) * periods)
