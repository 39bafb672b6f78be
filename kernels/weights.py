"""Weights as kernels see them: numpy arrays (often memory-mapped) in one of a few schemes.

A scheme here is the run-time half: what the numbers mean (`dequantize`), what they weigh
(`num_bytes`), and how they are cut (`take_rows`). Converting into a scheme lives in `quant`.
Every matrix is [out_features, in_features]. Exercised by
`pytest tests/unit/kernels/test_weights.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

F32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """Plain numbers: float32, float16, or bfloat16 (the `ml_dtypes` type)."""

    data: npt.NDArray[Any]  # [out, in] or [n]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    def dequantize(self) -> F32Array:
        return self.data.astype(np.float32)

    def take_rows(self, rows: npt.NDArray[np.intp] | slice) -> DenseWeight:
        return DenseWeight(self.data[rows])


@dataclass(frozen=True, slots=True)
class GroupedIntWeight:
    """Integers with a scale, and perhaps an offset, per group of consecutive inputs.

    w[o, i] = scale[o, g] * q[o, i] + offset[o, g], g = i // group_size. With `bits` 4, q is 0..15
    and two sit in a byte, even input in the low half; with 8, q is -128..127 and `offset` is
    usually None. Takes GGUF Q4_0, Q4_1 and Q8_0 without loss.
    """

    bits: int
    group_size: int
    q: npt.NDArray[np.uint8] | npt.NDArray[np.int8]  # [out, in / 2] u8, or [out, in] i8
    scale: npt.NDArray[Any]  # [out, in / group_size] fp16 or fp32
    offset: npt.NDArray[Any] | None  # like scale

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits must be 4 or 8, got {self.bits}")
        if self.shape[1] % self.group_size:
            raise ValueError(f"groups of {self.group_size} do not divide {self.shape[1]} inputs")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.q.shape[0], self.q.shape[1] * (8 // self.bits)

    @property
    def num_bytes(self) -> int:
        offset = 0 if self.offset is None else self.offset.nbytes
        return self.q.nbytes + self.scale.nbytes + offset

    def dequantize(self) -> F32Array:
        out, width = self.shape
        grouped = self._integers().reshape(out, -1, self.group_size).astype(np.float32)
        grouped *= self.scale.astype(np.float32)[:, :, None]
        if self.offset is not None:
            grouped += self.offset.astype(np.float32)[:, :, None]
        return grouped.reshape(out, width)

    def take_rows(self, rows: npt.NDArray[np.intp] | slice) -> GroupedIntWeight:
        offset = None if self.offset is None else self.offset[rows]
        return GroupedIntWeight(self.bits, self.group_size, self.q[rows], self.scale[rows], offset)

    def _integers(self) -> npt.NDArray[np.uint8] | npt.NDArray[np.int8]:
        if self.bits == 8:
            return self.q
        low_high = np.stack((self.q & 15, self.q >> 4), axis=-1)
        return low_high.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Matrices with the same inputs and unlike schemes, stacked along the outputs.

    A fused projection (q | k | v) whose parts cannot be one matrix; an op runs them part by part.
    """

    parts: tuple[DenseWeight | GroupedIntWeight, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def dequantize(self) -> F32Array:
        return np.concatenate([part.dequantize() for part in self.parts])


Weight = DenseWeight | GroupedIntWeight | StackedWeight


def stack(parts: Sequence[DenseWeight | GroupedIntWeight]) -> Weight:
    """One weight from matrices stacked along their outputs, fused where their schemes agree."""
    first = parts[0]
    if all(isinstance(part, DenseWeight) for part in parts):
        arrays = [part.data for part in parts if isinstance(part, DenseWeight)]
        if len({array.dtype for array in arrays}) == 1:
            return DenseWeight(np.concatenate(arrays))
    if isinstance(first, GroupedIntWeight):
        grouped = [part for part in parts if isinstance(part, GroupedIntWeight)]
        if len(grouped) == len(parts) and len({_scheme_key(part) for part in grouped}) == 1:
            return _stack_grouped(first, grouped)
    return StackedWeight(tuple(parts))


def _scheme_key(weight: GroupedIntWeight) -> tuple[object, ...]:
    return weight.bits, weight.group_size, weight.scale.dtype, weight.offset is None


def _stack_grouped(first: GroupedIntWeight, parts: list[GroupedIntWeight]) -> GroupedIntWeight:
    offsets = [part.offset for part in parts if part.offset is not None]
    return GroupedIntWeight(
        first.bits,
        first.group_size,
        np.concatenate([part.q for part in parts]),
        np.concatenate([part.scale for part in parts]),
        np.concatenate(offsets) if offsets else None,
    )
