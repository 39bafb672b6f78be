"""Weights into the native kernels' tile layouts: pure functions of the weight and the format.

A packed matrix is one flat array of bytes, so it can be stored and memory-mapped as it is.
Exercised by `pytest tests/cpu/native/test_products.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from hasten.kernels.cpu.fp8_packing import fill_tiles, fits_tiles, scale_groups
from hasten.kernels.weights import Fp8Weight, GroupedIntWeight

if TYPE_CHECKING:
    from hasten.kernels.cpu._native import Arena, Packed
    from hasten.kernels.weights import Matrix

U8Array = npt.NDArray[np.uint8]

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


def packed_bytes(weight: Matrix, target: WeightFormat) -> int:
    """The size of what `pack` makes."""
    from hasten.kernels.cpu import _native

    rows, width = weight.shape
    if isinstance(weight, GroupedIntWeight) and target == integer_format(weight):
        return _native.packed_bytes(target, _scale_type(weight), rows, width)
    if isinstance(weight, Fp8Weight) and target is WeightFormat.FP8:
        return _native.packed_bytes(target, 1, rows, _padded(width), scale_groups(weight))
    return _native.packed_bytes(target, 1, rows, _padded(width))


def pack(weight: Matrix, target: WeightFormat, arena: Arena) -> PackedMatrix:
    """`weight` in `target`: its own integers, or its dequantised numbers, in memory of `arena`."""
    data = arena.take(packed_bytes(weight, target))
    if isinstance(weight, GroupedIntWeight) and target == integer_format(weight):
        return _pack_integers(weight, target, data)
    if isinstance(weight, Fp8Weight) and target is WeightFormat.FP8:
        return _pack_fp8(weight, data)
    return _pack_dense(weight, target, data)


def _pack_fp8(weight: Fp8Weight, data: U8Array) -> PackedMatrix:
    rows, width = weight.shape
    fill_tiles(weight, data)
    return PackedMatrix(WeightFormat.FP8, 1, rows, _padded(width), data, scale_groups(weight))


def _pack_integers(weight: GroupedIntWeight, target: WeightFormat, data: U8Array) -> PackedMatrix:
    from hasten.kernels.cpu import _native

    rows, width = weight.shape
    scale_type = _scale_type(weight)
    dtype = np.float32 if scale_type else np.float16
    scale = np.ascontiguousarray(weight.scale, dtype=dtype)
    offset = None
    if weight.offset is not None:
        offset = np.ascontiguousarray(weight.offset, dtype=dtype)
    elif target == WeightFormat.INT4:
        offset = np.zeros_like(scale)
    integers = np.ascontiguousarray(weight.q).view(np.uint8)
    _native.pack_integers(target, scale_type, weight.group_size, integers, scale, offset, data)
    return PackedMatrix(target, scale_type, rows, width, data)


def _scale_type(weight: GroupedIntWeight) -> int:
    """float16 where scales and offsets are that (half the bytes to read); else float32 for both.

    A zero point other than 8 makes an offset that float16 cannot hold: see `exact_offset`.
    """
    parts = [weight.scale] if weight.offset is None else [weight.scale, weight.offset]
    return 0 if all(part.dtype == np.float16 for part in parts) else 1


def _pack_dense(weight: Matrix, target: WeightFormat, data: U8Array) -> PackedMatrix:
    from hasten.kernels.cpu import _native

    rows, width = weight.shape
    values = np.ascontiguousarray(weight.dequantize(), dtype=np.float32)
    _native.pack_dense(target, values, data)
    return PackedMatrix(target, 1, rows, _padded(width), data)


def _padded(width: int) -> int:
    return -(-width // GROUP) * GROUP
