"""e4m3 weights made from plain ones: per tensor, per channel, or per 128x128 block.

s = max|w| / 448 over what shares the scale, rounded to bf16 (the type that checkpoints store), and
q = w / s, clamped to +-448 and rounded to nearest even; what shares a scale and is all zero gets
scale 1. Rounding s can leave its largest number 0.2 % outside: it is clamped, by less than its own
rounding step. The run half is `kernels.weights.Fp8Weight`.
Source: the E4M3 format of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022); scales per
block as in DeepSeek-V3. Exercised by `pytest tests/unit/quant/test_fp8.py`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from hasten.kernels.weights import FP8_GROUP, ActivationScheme, Fp8Weight

if TYPE_CHECKING:
    import numpy.typing as npt
    from hasten.kernels.weights import F32Array, Matrix

E4M3_MAX = 448.0


class Granularity(enum.StrEnum):
    """What shares a scale."""

    TENSOR = "tensor"
    CHANNEL = "channel"
    BLOCK = "block"


def quantize_fp8(
    weight: Matrix,
    granularity: Granularity = Granularity.CHANNEL,
    activations: ActivationScheme = ActivationScheme.TOKEN,
    input_scale: float | None = None,
) -> Fp8Weight:
    """The e4m3 form of a matrix. Raises ValueError when a number is not finite."""
    values = weight.dequantize()
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    out, in_features = values.shape
    blocks = {
        Granularity.TENSOR: (out, in_features),
        Granularity.CHANNEL: (1, in_features),
        Granularity.BLOCK: (FP8_GROUP, FP8_GROUP),
    }
    block = blocks[granularity]
    scale = _scales(values, block)
    data = to_e4m3(values / _expand(scale.astype(np.float32), block, values.shape))
    return Fp8Weight(data, scale, block, activations, input_scale)


def to_e4m3(values: F32Array) -> npt.NDArray[ml_dtypes.float8_e4m3fn]:
    """Clamped to +-448 and rounded to nearest even (the plain conversion overflows to NaN)."""
    return np.clip(values, -E4M3_MAX, E4M3_MAX).astype(ml_dtypes.float8_e4m3fn)


def _scales(values: F32Array, block: tuple[int, int]) -> npt.NDArray[ml_dtypes.bfloat16]:
    """[ceil(out / rows), ceil(in / cols)] bf16."""
    rows, cols = block
    largest = np.abs(values)
    largest = np.maximum.reduceat(largest, np.arange(0, values.shape[0], rows), axis=0)
    largest = np.maximum.reduceat(largest, np.arange(0, values.shape[1], cols), axis=1)
    scale = (largest / np.float32(E4M3_MAX)).astype(ml_dtypes.bfloat16)
    scale[scale == 0] = 1
    return scale


def _expand(scale: F32Array, block: tuple[int, int], shape: tuple[int, ...]) -> F32Array:
    """Scales broadcastable to `shape`; per channel and per tensor they are already."""
    if scale.shape[1] == 1 and scale.shape[0] in (1, shape[0]):
        return scale
    rows = np.repeat(scale, block[0], axis=0)[: shape[0]]
    return np.repeat(rows, block[1], axis=1)[:, : shape[1]]
