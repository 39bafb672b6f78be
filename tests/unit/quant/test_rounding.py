"""Rounding to storable grids."""

from __future__ import annotations

import numpy as np
import pytest
from hasten.kernels.weights import F32Array
from hasten.quant.integers import codes_of, zeros_of
from hasten.quant.rounding import (
    SHRINKS,
    IntGrid,
    fit_scales,
    quantize_nearest,
    round_to_grid,
    search_shrink,
)
from ml_dtypes import bfloat16

RNG = np.random.default_rng(12)
GRIDS = [
    IntGrid(bits, group, symmetric, dtype)
    for bits in (4, 8)
    for group in (32, 64)
    for symmetric in (False, True)
    for dtype in (np.float16, bfloat16)
]


def normal(*shape: int) -> F32Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("grid", GRIDS)
def test_rounding_is_to_the_nearest_of_the_grid(grid: IntGrid) -> None:
    weight = normal(5, 128)
    scales = fit_scales(weight, grid)
    codes = np.arange(grid.largest + 1)
    rounded = round_to_grid(weight, grid)
    for row, column in ((0, 0), (2, 63), (4, 127)):
        group = column // grid.group_size
        points = (codes - scales.zero[row, group]) * scales.scale[row, group].astype(np.float32)
        nearest = points[np.abs(points - weight[row, column]).argmin()]
        assert rounded[row, column] == np.float32(nearest)


@pytest.mark.parametrize("grid", GRIDS)
def test_what_is_stored_is_what_was_rounded_to(grid: IntGrid) -> None:
    weight = normal(6, 128)
    stored = quantize_nearest(weight, grid)
    np.testing.assert_allclose(stored.dequantize(), round_to_grid(weight, grid), rtol=1e-6)
    assert codes_of(stored).max() <= grid.largest
    zeros = zeros_of(stored)
    assert zeros.min() >= 0
    assert zeros.max() <= grid.largest
    if grid.symmetric:
        assert (zeros == 1 << (grid.bits - 1)).all()


def test_zero_is_always_on_the_grid() -> None:
    weight = 5 + np.abs(normal(3, 32))
    weight[:, 7] = 0
    assert (round_to_grid(weight, IntGrid(4, 32, symmetric=False))[:, 7] == 0).all()


def test_a_group_of_zeros_stays_zero() -> None:
    stored = quantize_nearest(np.zeros((2, 64), np.float32), IntGrid(4, 32, symmetric=False))
    assert not stored.dequantize().any()


def test_groups_that_do_not_divide_name_those_that_do() -> None:
    with pytest.raises(
        ValueError, match="groups of 128 do not divide 576 inputs; possible: 32, 64"
    ):
        quantize_nearest(normal(2, 576), IntGrid(4, 128, symmetric=True))


def test_shrinking_is_chosen_by_the_error_in_the_output() -> None:
    grid = IntGrid(4, 32, symmetric=False)
    weight, inputs = normal(4, 64), normal(200, 64)
    weight[0, 0] = 30  # a lone outlier whose input hardly occurs
    inputs[:, 0] *= 1e-3
    gram = inputs.T @ inputs
    chosen = search_shrink(weight, gram, grid)
    for row in range(4):
        for group in range(2):
            columns = slice(32 * group, 32 * group + 32)
            errors = [
                np.linalg.norm(
                    inputs[:, columns]
                    @ (round_to_grid(weight, grid, shrink) - weight)[row, columns]
                )
                for shrink in SHRINKS
            ]
            assert errors[SHRINKS.index(round(float(chosen[row, group]), 2))] == pytest.approx(
                min(errors), rel=1e-3
            )
    assert chosen[0, 0] < 0.7
