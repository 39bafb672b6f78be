"""Integer weights with a scale per group of 32 inputs, made by rounding to the nearest.

int8 is symmetric: w = s q, s = max|w| / 127. int4 is asymmetric: w = s q + m, m the group's minimum
and s its range / 15. Scales are fp16, as in GGUF's Q8_0 and Q4_1, and integers are chosen against
the rounded scale. The run half (`dequantize`) is `kernels.weights.GroupedIntWeight`.
Exercised by `pytest tests/unit/quant/test_grouped_int.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import DenseWeight, GroupedIntWeight

GROUP_SIZE = 32

F32 = npt.NDArray[np.float32]


def quantize_int8(weight: DenseWeight) -> GroupedIntWeight:
    """Raises ValueError when groups do not divide the inputs or a number is not finite."""
    groups = _grouped(weight)
    scale = _to_fp16(np.abs(groups).max(axis=2) / np.float32(127))
    integers = _divide(groups, scale)
    q = np.clip(integers, -127, 127).astype(np.int8).reshape(weight.shape)
    return GroupedIntWeight(8, GROUP_SIZE, q, scale, None)


def quantize_int4(weight: DenseWeight) -> GroupedIntWeight:
    """Raises ValueError when groups do not divide the inputs or a number is not finite."""
    groups = _grouped(weight)
    offset = _to_fp16(groups.min(axis=2))
    above = groups - offset.astype(np.float32)[:, :, None]
    scale = _to_fp16(above.max(axis=2) / np.float32(15))
    integers = np.clip(_divide(above, scale), 0, 15).astype(np.uint8)
    pairs = integers.reshape(weight.shape[0], -1, 2)
    return GroupedIntWeight(4, GROUP_SIZE, pairs[:, :, 0] | (pairs[:, :, 1] << 4), scale, offset)


LOAD_TIME_SCHEMES: dict[str, Callable[[DenseWeight], GroupedIntWeight]] = {
    "int4": quantize_int4,
    "int8": quantize_int8,
}
"""What `--quantization` can make of a dense weight while loading, by name."""


def _grouped(weight: DenseWeight) -> F32:
    out, width = weight.shape
    if width % GROUP_SIZE:
        raise ValueError(f"groups of {GROUP_SIZE} do not divide {width} inputs")
    return weight.dequantize().reshape(out, -1, GROUP_SIZE)


def _to_fp16(values: F32) -> npt.NDArray[np.float16]:
    if not (np.abs(values) <= np.finfo(np.float16).max).all():
        raise ValueError("a weight is not finite, or too large for an fp16 scale")
    return values.astype(np.float16)


def _divide(groups: F32, scale: npt.NDArray[np.float16]) -> F32:
    """The groups over their scale, rounded; a group whose scale is 0 gives zeros."""
    wide = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    rounded: F32 = np.rint(groups * inverse[:, :, None])
    return rounded
