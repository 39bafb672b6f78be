"""Weights into the native kernels' tile layouts: pure functions of the weight and the format.

A packed matrix is one flat array of bytes, so it can be stored and memory-mapped as it is.
Exercised by `pytest tests/cpu/native/test_packing.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.cpu.fp8_packing import fill_tiles, fits_tiles, scale_groups
from hasten.kernels.weights import Fp8Weight, GroupedIntWeight

if TYPE_CHECKING:
    from hasten.kernels.cpu._native import Arena, Packed
    from hasten.kernels.weights import Matrix

GROUP = 32
"""Inputs that share one activation scale; weight groups are multiples of it."""


class WeightFormat(enum.IntEnum):
    """As `WeightFormat` in native/ops.h."""

    INT4 = 0
    INT8 = 1
    INT8_OFFSET = 2
    BF16 = 3
    F32 = 4
    FP8 = 5


class Form(enum.IntFlag):
    """As `Form` in native/ops.h: the shapes in which activations are left for their readers."""

    PLAIN = 1
    INT8 = 2
    BF16 = 4
    F32 = 8


INPUT_FORMS = {
    WeightFormat.INT4: Form.INT8,
    WeightFormat.INT8: Form.INT8,
    WeightFormat.INT8_OFFSET: Form.INT8,
    WeightFormat.BF16: Form.BF16,
    WeightFormat.FP8: Form.BF16,
    WeightFormat.F32: Form.F32,
}
"""The form in which each weight format wants its inputs."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight in tiles of 32 outputs; `data` is what the kernels read."""

    format: WeightFormat
    scale_type: int  # 0: float16, 1: float32
    rows: int
    width: int  # padded to a multiple of 32
    data: npt.NDArray[np.uint8]
    scale_groups: int = 1  # of fp8: groups of 32 inputs that share a scale

    def bind(self) -> Packed:
        from hasten.kernels.cpu import _native

        return _native.packed(
            self.format, self.scale_type, self.rows, self.width, self.scale_groups, self.data
        )


def integer_format(weight: Matrix) -> WeightFormat | None:
    """The format that keeps a weight's integers; None where there is none.

    The kernels take groups of consecutive inputs, a multiple of 32 of them, as all formats met in
    practice but act-order are.
    """
    if not isinstance(weight, GroupedIntWeight):
        return None
    if weight.g_idx is not None or weight.group_size % GROUP or weight.shape[1] % weight.group_size:
        return None
    if weight.bits == 4:
        return WeightFormat.INT4
    return WeightFormat.INT8 if weight.offset is None else WeightFormat.INT8_OFFSET


def own_format(weight: Matrix, *, wants_int8: bool) -> WeightFormat | None:
    """The format that keeps a weight's own numbers for a bfloat16 program; None: it has none."""
    if isinstance(weight, Fp8Weight):
        return WeightFormat.FP8 if fits_tiles(weight) else None
    return integer_format(weight) if wants_int8 else None


def pack(weight: Matrix, target: WeightFormat, arena: Arena) -> PackedMatrix:
    """`weight` in `target`: its own integers, or its dequantised numbers, in memory of `arena`."""
    if isinstance(weight, GroupedIntWeight) and target == integer_format(weight):
        return _pack_integers(weight, target, arena)
    if isinstance(weight, Fp8Weight) and target is WeightFormat.FP8:
        return _pack_fp8(weight, arena)
    return _pack_dense(weight, target, arena)


def _pack_fp8(weight: Fp8Weight, arena: Arena) -> PackedMatrix:
    from hasten.kernels.cpu import _native

    rows, width = weight.shape
    padded, groups = -(-width // GROUP) * GROUP, scale_groups(weight)
    data = arena.take(_native.packed_bytes(WeightFormat.FP8, 1, rows, padded, groups))
    fill_tiles(weight, data)
    return PackedMatrix(WeightFormat.FP8, 1, rows, padded, data, groups)


def _pack_integers(weight: GroupedIntWeight, target: WeightFormat, arena: Arena) -> PackedMatrix:
    from hasten.kernels.cpu import _native

    rows, width = weight.shape
    scale = _scales(weight.scale)
    scale_type = 0 if scale.dtype == np.float16 else 1
    offset = None
    if weight.offset is not None:
        offset = _scales(weight.offset.astype(scale.dtype, copy=False))
    elif target == WeightFormat.INT4:
        offset = np.zeros_like(scale)
    data = arena.take(_native.packed_bytes(target, scale_type, rows, width))
    integers = np.ascontiguousarray(weight.q).view(np.uint8)
    _native.pack_integers(target, scale_type, weight.group_size, integers, scale, offset, data)
    return PackedMatrix(target, scale_type, rows, width, data)


def _scales(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """float16 stays (half the bytes to read); anything else becomes float32."""
    dtype = np.float16 if values.dtype == np.float16 else np.float32
    return np.ascontiguousarray(values, dtype=dtype)


def _pack_dense(weight: Matrix, target: WeightFormat, arena: Arena) -> PackedMatrix:
    from hasten.kernels.cpu import _native

    rows, width = weight.shape
    padded = -(-width // GROUP) * GROUP
    data = arena.take(_native.packed_bytes(target, 1, rows, padded))
    values = np.ascontiguousarray(weight.dequantize(), dtype=np.float32)
    _native.pack_dense(target, values, data)
    return PackedMatrix(target, 1, rows, padded, data)
