"""GPTQ: rounding one input after another, each time moving the error into the inputs still to come.

With H = X^T X of the layer's inputs, U the upper Cholesky factor of H^-1 and columns in order of
falling diag(H), column j is rounded to its grid and the error e = (w_j - q_j) / U_jj is subtracted
from the columns after it, e U_jk. Grids are those of the columns' own groups, fitted beforehand, so
no `g_idx` is left behind ("static groups"). Source: Frantar et al., 2022 (arXiv 2210.17323).
Exercised by `pytest tests/unit/quant/test_calibrated.py`.
"""

from __future__ import annotations

import numpy as np
from hasten.kernels.weights import F32Array, GroupedIntWeight
from hasten.quant.integers import make_grouped
from hasten.quant.rounding import GroupScales, IntGrid, fit_scales, search_shrink

DAMPING = 0.01
"""Added to the diagonal, as a share of its mean."""
BLOCK_LEN = 128
"""Columns whose errors are applied to the rest of the matrix at once."""


def quantize_gptq(weight: F32Array, gram: F32Array, grid: IntGrid) -> GroupedIntWeight:
    """The weight [out, in] on its grid, given X^T X [in, in]."""
    scales = fit_scales(weight, grid, search_shrink(weight, gram, grid))
    order = np.argsort(-np.diagonal(gram), kind="stable")
    factor = _inverse_factor(gram[np.ix_(order, order)])
    codes = np.empty(weight.shape, np.uint8)
    codes[:, order] = _round_in_order(weight[:, order], factor, _Columns(scales, grid, order))
    return make_grouped(grid.bits, codes, scales.scale, scales.zero)


class _Columns:
    """Rounding of single columns, by their place in the order."""

    def __init__(self, scales: GroupScales, grid: IntGrid, order: np.ndarray) -> None:
        groups = order // grid.group_size
        self._scale = scales.scale.astype(np.float32)[:, groups]
        self._zero = scales.zero.astype(np.float32)[:, groups]
        self._largest = grid.largest

    def round(self, column: F32Array, at: int) -> tuple[F32Array, F32Array]:
        """The codes of a column [out], and the numbers that they stand for."""
        scale, zero = self._scale[:, at], self._zero[:, at]
        codes = np.clip(np.rint(column / scale) + zero, 0, self._largest)
        return codes, (codes - zero) * scale


def _round_in_order(weight: F32Array, factor: F32Array, columns: _Columns) -> F32Array:
    remaining = weight.T.copy()  # [in, out]: columns lie together
    codes = np.empty_like(remaining)
    width = len(remaining)
    for start in range(0, width, BLOCK_LEN):
        stop = min(start + BLOCK_LEN, width)
        errors = np.zeros((stop - start, remaining.shape[1]), np.float32)
        for at in range(start, stop):
            codes[at], rounded = columns.round(remaining[at], at)
            error = (remaining[at] - rounded) / factor[at, at]
            remaining[at + 1 : stop] -= np.outer(factor[at, at + 1 : stop], error)
            errors[at - start] = error
        remaining[stop:] -= factor[start:stop, stop:].T @ errors
    return codes.T


def _inverse_factor(gram: F32Array) -> F32Array:
    """The upper Cholesky factor of (gram + damping)^-1; inputs that are never used weigh 1."""
    damped = gram.astype(np.float64)
    diagonal = np.diagonal(damped).copy()
    diagonal[diagonal == 0] = 1
    np.fill_diagonal(damped, diagonal + DAMPING * diagonal.mean())
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    # cholesky gives L with L L^T = A; GPTQ wants U with U^T U = A, which is L^T.
    return np.ascontiguousarray(upper, np.float32)
