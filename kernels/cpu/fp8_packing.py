"""fp8 weights into tiles, as native/ops.h `PackedWeight` lays them out.

Exercised by `pytest tests/cpu/native/test_products.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    from hasten.kernels.weights import Fp8Weight

GROUP = TILE_COLS = 32


def fits_tiles(weight: Fp8Weight) -> bool:
    """Whether scales stand for whole groups of inputs."""
    return weight.block[1] % GROUP == 0 or weight.block[1] >= weight.shape[1]


def scale_groups(weight: Fp8Weight) -> int:
    """Groups of inputs that share a scale."""
    return -(-min(weight.block[1], weight.shape[1]) // GROUP)


def fill_tiles(weight: Fp8Weight, data: npt.NDArray[np.uint8]) -> None:
    """Write all tiles, each its scales and then its codes, to `data`."""
    rows, width = weight.shape
    num_tiles, padded = -(-rows // TILE_COLS), -(-width // GROUP) * GROUP
    num_scales = -(-padded // GROUP // scale_groups(weight))
    scales = np.zeros((num_tiles * TILE_COLS, num_scales), np.float32)
    scales[:rows] = weight.row_scale
    codes = np.zeros((num_tiles * TILE_COLS, padded), np.uint8)
    codes[:rows, :width] = weight.data.view(np.uint8)
    tiles = data.reshape(num_tiles, -1)
    split = 4 * TILE_COLS * num_scales
    by_tile = scales.reshape(num_tiles, TILE_COLS, num_scales).swapaxes(1, 2)
    tiles[:, :split] = np.ascontiguousarray(by_tile).view(np.uint8).reshape(num_tiles, split)
    pairs = codes.reshape(num_tiles, TILE_COLS, padded // 2, 2).swapaxes(1, 2)
    tiles[:, split:] = pairs.reshape(num_tiles, -1)
