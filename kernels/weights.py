"""Weights as kernels see them: numpy arrays (often memory-mapped) in one of a few schemes.

A scheme here is the run-time half: what the numbers mean (`dequantize`), what they weigh
(`num_bytes`), and how they are cut (`take_rows`, `take_inputs`, `shard`) and joined (`stack`).
Converting into a scheme lives in `quant`. Every matrix is [out_features, in_features]. Exercised by
`pytest tests/unit/quant`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.small_floats import e4m3_values

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

    def take_inputs(self, start: int, stop: int) -> DenseWeight:
        return DenseWeight(self.data[:, start:stop])


@dataclass(frozen=True, slots=True)
class GroupedIntWeight:
    """Integers with a scale, and perhaps an offset, per group of inputs.

    w[o, i] = scale[o, g] * q[o, i] + offset[o, g]. Groups are consecutive, g = i // group_size (a
    whole row is a group too), unless `g_idx` names each input's group: g = g_idx[i], as GPTQ's
    act-order leaves it. With `bits` 4, q is 0..15 and two sit in a byte, even input in the low
    half; with 8, q is -128..127 and `offset` is usually None. Takes GGUF Q4_0, Q4_1 and Q8_0,
    AutoAWQ, GPTQ and compressed-tensors' packed integers without loss.
    """

    bits: int
    group_size: int
    q: npt.NDArray[np.uint8] | npt.NDArray[np.int8]  # [out, in / 2] u8, or [out, in] i8
    scale: npt.NDArray[Any]  # [out, groups] fp16, bf16 or fp32
    offset: npt.NDArray[Any] | None  # like scale
    g_idx: npt.NDArray[np.int32] | None = None  # [in], values in 0 .. groups - 1

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits must be 4 or 8, got {self.bits}")
        if self.g_idx is None and self.shape[1] % self.group_size:
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
        if self.g_idx is not None:
            return self._dequantize_scattered(self.g_idx)
        grouped = self.integers().reshape(out, -1, self.group_size).astype(np.float32)
        grouped *= self.scale.astype(np.float32)[:, :, None]
        if self.offset is not None:
            grouped += self.offset.astype(np.float32)[:, :, None]
        return grouped.reshape(out, width)

    def take_rows(self, rows: npt.NDArray[np.intp] | slice) -> GroupedIntWeight:
        offset = None if self.offset is None else self.offset[rows]
        return replace(self, q=self.q[rows], scale=self.scale[rows], offset=offset)

    def take_inputs(self, start: int, stop: int) -> GroupedIntWeight:
        """Inputs start .. stop. Raises ValueError when that would cut a group."""
        half = 8 // self.bits
        q = self.q[:, start // half : stop // half]
        if self.g_idx is not None:  # scattered groups keep all their scales
            _check_cut(start, stop, half)
            return replace(self, q=q, g_idx=self.g_idx[start:stop])
        if self.scale.shape[1] == 1:
            _check_cut(start, stop, half)
            return replace(self, q=q, group_size=stop - start)
        _check_cut(start, stop, self.group_size)
        groups = slice(start // self.group_size, stop // self.group_size)
        offset = None if self.offset is None else self.offset[:, groups]
        return replace(self, q=q, scale=self.scale[:, groups], offset=offset)

    def integers(self) -> npt.NDArray[np.uint8] | npt.NDArray[np.int8]:
        """The integers unpacked, [out, in]."""
        if self.bits == 8:
            return self.q
        low_high = np.stack((self.q & 15, self.q >> 4), axis=-1)
        return low_high.reshape(self.shape)

    def _dequantize_scattered(self, g_idx: npt.NDArray[np.int32]) -> F32Array:
        values = self.integers().astype(np.float32)
        values *= self.scale.astype(np.float32)[:, g_idx]
        if self.offset is not None:
            values += self.offset.astype(np.float32)[:, g_idx]
        return values


class ActivationScheme(enum.StrEnum):
    """How a linear's inputs are quantised to e4m3 before they meet fp8 weights.

    The scale of dynamic schemes is amax / 448 over its token (or its token's group of 128 inputs).
    """

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - a granularity, not a secret
    TOKEN_GROUP = "token_group"  # noqa: S105 - likewise
    STATIC = "static"


FP8_GROUP = 128
"""Inputs per activation group, and the side of a weight block (DeepSeek-V3's choice)."""


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """e4m3 numbers with one scale per block of them: a tensor, a row, or a rectangle.

    w[o, i] = scale[o // block_rows, i // block_cols] * data[o, i]; the last blocks may be ragged.
    `block` is (out, in) for a scale per tensor, (1, in) per channel, (128, 128) per block, and
    (1, 128) for what stacking makes of blocks.
    """

    data: npt.NDArray[Any]  # [out, in] ml_dtypes.float8_e4m3fn, or their codes (uint8)
    scale: npt.NDArray[Any]  # [ceil(out / block_rows), ceil(in / block_cols)] fp32 or bf16
    block: tuple[int, int]
    activations: ActivationScheme = ActivationScheme.NONE
    input_scale: float | None = None  # of STATIC, and only of it

    def __post_init__(self) -> None:
        out, width = self.data.shape
        expected = -(-out // self.block[0]), -(-width // self.block[1])
        if self.scale.shape != expected:
            raise ValueError(f"scale is {self.scale.shape}, not {expected}, at blocks {self.block}")
        if (self.input_scale is None) == (self.activations is ActivationScheme.STATIC):
            raise ValueError("input_scale comes with static activations and only with them")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes + self.scale.nbytes

    @property
    def row_scale(self) -> F32Array:
        """The scales expanded to rows: [out, ceil(in / block_cols)]."""
        repeated = np.repeat(self.scale.astype(np.float32), self.block[0], axis=0)
        return repeated[: self.data.shape[0]]

    def dequantize(self) -> F32Array:
        width = self.data.shape[1]
        scale = np.repeat(self.row_scale, self.block[1], axis=1)[:, :width]
        return e4m3_values(self.data) * scale

    def take_rows(self, rows: npt.NDArray[np.intp] | slice) -> Fp8Weight:
        data = self.data[rows]
        if self.scale.shape[0] == 1:
            return replace(self, data=data, block=(max(len(data), 1), self.block[1]))
        return replace(self, data=data, scale=self.row_scale[rows], block=(1, self.block[1]))

    def take_inputs(self, start: int, stop: int) -> Fp8Weight:
        """Inputs start .. stop. Raises ValueError when that would cut a block."""
        data = self.data[:, start:stop]
        rows, cols = self.block
        if self.scale.shape[1] == 1:
            return replace(self, data=data, block=(rows, stop - start))
        _check_cut(start, start if stop == self.shape[1] else stop, cols)
        return replace(self, data=data, scale=self.scale[:, start // cols : -(-stop // cols)])


def _check_cut(start: int, stop: int, unit: int) -> None:
    if start % unit or stop % unit:
        raise ValueError(f"inputs {start} to {stop} cut groups of {unit}")


Matrix = DenseWeight | GroupedIntWeight | Fp8Weight
"""A weight that is one matrix of one scheme: what a checkpoint holds for one linear."""


@dataclass(frozen=True, slots=True)
class StackedWeight:
    """Matrices with the same inputs and unlike schemes, stacked along the outputs.

    A fused projection (q | k | v) whose parts cannot be one matrix; an op runs them part by part.
    """

    parts: tuple[Matrix, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def dequantize(self) -> F32Array:
        return np.concatenate([part.dequantize() for part in self.parts])

    def take_rows(self, rows: slice) -> Weight:
        """Rows rows.start .. rows.stop, in as many parts as they touch."""
        taken: list[Matrix] = []
        begin = 0
        for part in self.parts:
            start, stop = max(rows.start - begin, 0), min(rows.stop - begin, part.shape[0])
            if start < stop:
                taken.append(part.take_rows(slice(start, stop)))
            begin += part.shape[0]
        return taken[0] if len(taken) == 1 else StackedWeight(tuple(taken))


Weight = Matrix | StackedWeight


def stack(parts: Sequence[Matrix]) -> Weight:
    """One weight from matrices stacked along their outputs, fused where their schemes agree.

    Agreeing means that a row keeps its meaning: the same bits, groups and `g_idx`; for fp8 the
    same activation scheme and static scale. Scales per tensor become scales per row, and blocks
    become per-row, per-128-column ones unless the parts meet at block borders.
    """
    dense = [part for part in parts if isinstance(part, DenseWeight)]
    grouped = [part for part in parts if isinstance(part, GroupedIntWeight)]
    fp8 = [part for part in parts if isinstance(part, Fp8Weight)]
    if len(dense) == len(parts) and len({part.data.dtype for part in dense}) == 1:
        return DenseWeight(np.concatenate([part.data for part in dense]))
    if len(grouped) == len(parts) and len({_grouped_key(part) for part in grouped}) == 1:
        return _stack_grouped(grouped)
    if len(fp8) == len(parts) and len({_fp8_key(part) for part in fp8}) == 1:
        return _stack_fp8(fp8)
    return StackedWeight(tuple(parts))


class Split(enum.Enum):
    """How ranks share a linear: its outputs, its inputs (and sum), or not at all."""

    COLUMN = "column"
    ROW = "row"
    REPLICATED = "replicated"


def shard(weight: Matrix, split: Split, rank: int, world_size: int) -> Matrix:
    """Rank `rank`'s equal part of a matrix.

    Raises ValueError when the side does not divide by `world_size` or a cut falls inside a group
    that shares a scale.
    """
    if split is Split.REPLICATED:
        return weight
    side = weight.shape[0 if split is Split.COLUMN else 1]
    if side % world_size:
        raise ValueError(f"{side} {split.value}-split features do not divide by {world_size}")
    start, stop = rank * side // world_size, (rank + 1) * side // world_size
    if split is Split.COLUMN:
        return weight.take_rows(slice(start, stop))
    return weight.take_inputs(start, stop)


def _grouped_key(weight: GroupedIntWeight) -> tuple[object, ...]:
    g_idx = None if weight.g_idx is None else weight.g_idx.tobytes()
    return weight.bits, weight.group_size, weight.scale.dtype, weight.offset is None, g_idx


def _stack_grouped(parts: list[GroupedIntWeight]) -> GroupedIntWeight:
    offsets = [part.offset for part in parts if part.offset is not None]
    return replace(
        parts[0],
        q=np.concatenate([part.q for part in parts]),
        scale=np.concatenate([part.scale for part in parts]),
        offset=np.concatenate(offsets) if offsets else None,
    )


def _fp8_key(weight: Fp8Weight) -> tuple[object, ...]:
    return weight.activations, weight.input_scale, weight.block[1]


def _stack_fp8(parts: list[Fp8Weight]) -> Fp8Weight:
    rows = parts[0].block[0]
    same = all(part.block[0] == rows for part in parts)
    keep = same and rows <= FP8_GROUP and not any(part.shape[0] % rows for part in parts[:-1])
    scales = [part.scale if keep else part.row_scale for part in parts]
    return replace(
        parts[0],
        data=np.concatenate([part.data for part in parts]),
        scale=np.concatenate(scales),
        block=(rows if keep else 1, parts[0].block[1]),
    )
