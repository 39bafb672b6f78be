"""Integer weights with a scale per group of inputs, made by rounding to the nearest.

int8 is symmetric: w = s q, s = max|w| / 127. int4 is asymmetric: w = s q + m, m the group's minimum
and s its range / 15. Scales are fp16, as in GGUF's Q8_0 and Q4_1, and integers are chosen against
the rounded scale. The run half (`dequantize`) is `kernels.weights.GroupedIntWeight`.
Exercised by `pytest tests/unit/quant/test_grouped_int.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import GroupedIntWeight, Matrix
from hasten.quant.integers import pack_nibbles

GROUP_SIZE = 32

F32 = npt.NDArray[np.float32]


def quantize_int8(weight: Matrix, group_size: int = GROUP_SIZE) -> GroupedIntWeight:
    """Raises ValueError when groups do not divide the inputs or a number is not finite."""
    groups = _grouped(weight, group_size)
    scale = _to_fp16(np.abs(groups).max(axis=2) / np.float32(127))
    integers = _divide(groups, scale)
    q = np.clip(integers, -127, 127).astype(np.int8).reshape(weight.shape)
    return GroupedIntWeight(8, group_size, q, scale, None)


def quantize_int4(weight: Matrix, group_size: int = GROUP_SIZE) -> GroupedIntWeight:
    """Raises ValueError when groups do not divide the inputs or a number is not finite."""
    groups = _grouped(weight, group_size)
    offset = _to_fp16(groups.min(axis=2))
    above = groups - offset.astype(np.float32)[:, :, None]
    scale = _to_fp16(above.max(axis=2) / np.float32(15))
    integers = np.clip(_divide(above, scale), 0, 15).astype(np.uint8)
    packed = pack_nibbles(integers.reshape(weight.shape))
    return GroupedIntWeight(4, group_size, packed, scale, offset)


def _grouped(weight: Matrix, group_size: int) -> F32:
    out, width = weight.shape
    if width % group_size:
        raise ValueError(f"groups of {group_size} do not divide {width} inputs")
    return weight.dequantize().reshape(out, -1, group_size)


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
