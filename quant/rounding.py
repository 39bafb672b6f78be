"""Rounding to a grid of integers that checkpoints hold: w = s (q - z), z a whole number.

Unlike `grouped_int`, whose offsets are free, this is what AWQ, GPTQ and compressed-tensors files
can store. Per group, with the range [low, high] of its numbers widened to hold 0:

    asymmetric    s = (high - low) / (2^bits - 1)          z = -low / s rounded
    symmetric     s = 2 max|w| / (2^bits - 1)              z = 2^(bits - 1)

s is rounded first to the type that the file stores; q is chosen against that. A range may be
*shrunk* (clipped), which trades the largest numbers of a group for a finer grid. Exercised by
`pytest tests/unit/quant/test_rounding.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import F32Array, GroupedIntWeight
from hasten.quant.integers import make_grouped

SHRINKS = tuple(1 - 0.05 * step for step in range(9))
"""Ranges that a search tries: the whole, down to 60 % of it."""


@dataclass(frozen=True, slots=True)
class IntGrid:
    """A kind of grid: how many bits, which inputs share it, whether 0 is its middle.

    `scale_dtype` is float16 or bfloat16 (the `ml_dtypes` type).
    """

    bits: int
    group_size: int
    symmetric: bool
    scale_dtype: npt.DTypeLike = np.float16

    @property
    def largest(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1


@dataclass(frozen=True, slots=True)
class GroupScales:
    """Scale and zero point per group, [out, groups]."""

    scale: npt.NDArray[Any]
    zero: npt.NDArray[np.int32]


def by_group(weight: F32Array, group_size: int) -> F32Array:
    """[out, in] as [out, groups, group_size]. Raises ValueError when groups do not divide."""
    if weight.shape[1] % group_size:
        fitting = ", ".join(str(size) for size in (32, 64, 128) if weight.shape[1] % size == 0)
        raise ValueError(
            f"groups of {group_size} do not divide {weight.shape[1]} inputs; "
            f"possible: {fitting or 'a row'}"
        )
    return weight.reshape(weight.shape[0], -1, group_size)


def fit_scales(weight: F32Array, grid: IntGrid, shrink: F32Array | float = 1.0) -> GroupScales:
    """The grids of all groups; `shrink` [out, groups] or one number narrows their ranges."""
    groups = by_group(weight, grid.group_size)
    low = np.minimum(groups.min(axis=2), 0) * np.float32(shrink)
    high = np.maximum(groups.max(axis=2), 0) * np.float32(shrink)
    if grid.symmetric:
        high = np.maximum(-low, high)
        low = -high
    limit = np.float32(np.finfo(np.float16).max)
    scale = np.minimum((high - low) / np.float32(grid.largest), limit).astype(grid.scale_dtype)
    scale[scale == 0] = 1
    if grid.symmetric:
        return GroupScales(scale, np.full(scale.shape, 1 << (grid.bits - 1), np.int32))
    zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, grid.largest)
    return GroupScales(scale, zero.astype(np.int32))


def round_codes(weight: F32Array, grid: IntGrid, scales: GroupScales) -> npt.NDArray[np.uint8]:
    """The nearest codes, [out, in]."""
    groups = by_group(weight, grid.group_size)
    steps = np.rint(groups / scales.scale.astype(np.float32)[:, :, None])
    codes = np.clip(steps + scales.zero[:, :, None], 0, grid.largest)
    return np.asarray(codes, np.uint8).reshape(weight.shape)


def round_to_grid(weight: F32Array, grid: IntGrid, shrink: F32Array | float = 1.0) -> F32Array:
    """`weight` with every number replaced by the nearest of its group's grid."""
    scales = fit_scales(weight, grid, shrink)
    groups = by_group(weight, grid.group_size)
    scale, zero = scales.scale.astype(np.float32)[:, :, None], scales.zero[:, :, None]
    steps = np.clip(np.rint(groups / scale), -zero, grid.largest - zero)
    rounded: F32Array = (steps * scale).astype(np.float32).reshape(weight.shape)
    return rounded


def quantize_nearest(
    weight: F32Array, grid: IntGrid, shrink: F32Array | float = 1.0
) -> GroupedIntWeight:
    """Round to nearest. Raises ValueError when groups do not divide the inputs."""
    scales = fit_scales(weight, grid, shrink)
    codes = round_codes(weight, grid, scales)
    return make_grouped(grid.bits, codes, scales.scale, scales.zero)


def search_shrink(weight: F32Array, gram: F32Array, grid: IntGrid) -> F32Array:
    """Per group the shrink of `SHRINKS` with the least error in the output, [out, groups].

    `gram` is X^T X over calibration inputs [in, in]; the error of a group is that of its own
    inputs, d^T G d with d the rounding error, as in AWQ's clipping (Lin et al., 2023).
    """
    size = grid.group_size
    blocks = np.stack(
        [gram[at : at + size, at : at + size] for at in range(0, weight.shape[1], size)]
    )
    best = np.full((weight.shape[0], len(blocks)), np.inf, np.float32)
    chosen = np.ones_like(best)
    for shrink in SHRINKS:
        error = by_group(round_to_grid(weight, grid, shrink) - weight, size).swapaxes(0, 1)
        cost = np.einsum("goi,goi->og", error @ blocks, error)
        better = cost < best
        best[better] = cost[better]
        chosen[better] = shrink
    return chosen
