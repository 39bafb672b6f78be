"""Rotary frequencies against the published formulas, computed in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hasten.core.models.rope import (
    LinearScaling,
    Llama3Scaling,
    divide_frequencies,
    make_rope,
)


def test_plain_frequencies() -> None:
    expected = [100000.0 ** (-2 * idx / 64) for idx in range(32)]
    rope = make_rope(64, 100000.0)
    assert rope.rotary_dim == 64
    assert rope.scale == 1.0
    assert rope.inv_freq == pytest.approx(expected, rel=2e-6)


def test_linear_scaling_divides() -> None:
    plain, scaled = make_rope(16, 1e4), make_rope(16, 1e4, LinearScaling(4.0))
    assert scaled.inv_freq == pytest.approx([freq / 4 for freq in plain.inv_freq], rel=1e-6)


def llama3(freq: float, scaling: Llama3Scaling) -> float:
    wavelength = 2 * math.pi / freq
    original = scaling.original_max_position_embeddings
    if wavelength < original / scaling.high_freq_factor:
        return freq
    if wavelength > original / scaling.low_freq_factor:
        return freq / scaling.factor
    smooth = (original / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * freq / scaling.factor + smooth * freq


@pytest.mark.parametrize("theta", [1e4, 5e5])
def test_llama3_scaling_keeps_stretches_and_blends(theta: float) -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain, scaled = make_rope(128, theta), make_rope(128, theta, scaling)
    expected = [llama3(freq, scaling) for freq in plain.inv_freq]
    assert scaled.inv_freq == pytest.approx(expected, rel=1e-5)
    ratios = {round(a / b, 3) for a, b in zip(plain.inv_freq, scaled.inv_freq, strict=True)}
    assert {1.0, 8.0} < ratios


def test_divided_frequencies() -> None:
    rope = divide_frequencies(make_rope(4, 1e4), np.array([2.0, 4.0], np.float32))
    assert rope.inv_freq == pytest.approx([0.5, 0.0025])


@pytest.mark.parametrize("rotary_dim", [0, -2, 7])
def test_odd_dimensions_are_refused(rotary_dim: int) -> None:
    with pytest.raises(ValueError, match="even and positive"):
        make_rope(rotary_dim, 1e4)
