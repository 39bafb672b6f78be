"""AWQ: scaling up the weights of the inputs that matter, before they are rounded.

For linears W that read x, a scale per input s > 0 leaves W x = (W s)(x / s) as it is, but moves the
grid: inputs with large s are rounded finer. 1 / s is folded into whatever makes x. Scales are
s = a^r (a: mean |x| per input), or a^r / b^(1 - r) with b the mean |w| relative to its group's
largest, r from 0 to 1 on a grid; kept is what errs least in the output, |Q(W s) x / s - W x|^2
summed over the calibration inputs, which needs only X^T X. Afterwards the ranges of groups are
clipped (`rounding.search_shrink`). Source: Lin et al., 2023 (arXiv 2306.00978).
Exercised by `pytest tests/unit/quant/test_calibrated.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import F32Array
from hasten.quant.rounding import IntGrid, by_group, round_to_grid

NUM_RATIOS = 10
SMALLEST = np.float32(1e-4)


def search_scale(
    weights: Sequence[F32Array],
    gram: F32Array,
    mean_magnitude: F32Array,
    grid: IntGrid,
    shared: npt.NDArray[np.intp],
) -> F32Array:
    """The best scale per input [in] for matrices [out, in] that read the same inputs.

    `gram` is X^T X [in, in], `mean_magnitude` mean |x| [in]. `shared[i]` names what makes input i:
    inputs that one source feeds get one scale (the heads that share a KV head).
    """
    joined = np.concatenate(weights)
    best_scale = np.ones(joined.shape[1], np.float32)
    best_error = output_error(joined, round_to_grid(joined, grid), gram)
    for scale in _candidates(joined, mean_magnitude, grid, shared):
        rounded = round_to_grid(joined * scale, grid) / scale
        error = output_error(joined, rounded, gram)
        if error < best_error:
            best_scale, best_error = scale, error
    return best_scale


def output_error(weight: F32Array, rounded: F32Array, gram: F32Array) -> float:
    """|rounded X - weight X|^2 summed over the inputs of `gram`."""
    difference = rounded - weight
    return float(np.einsum("oi,oi->", difference @ gram, difference, dtype=np.float64))


def _candidates(
    joined: F32Array, mean_magnitude: F32Array, grid: IntGrid, shared: npt.NDArray[np.intp]
) -> Iterator[F32Array]:
    inputs = _mean_over(mean_magnitude, shared)
    weights = _mean_over(_relative_magnitude(joined, grid.group_size), shared)
    for step in range(1, NUM_RATIOS + 1):
        ratio = np.float32(step / NUM_RATIOS)
        yield _balanced(inputs**ratio)
        yield _balanced(inputs**ratio / weights ** (1 - ratio))


def _relative_magnitude(weight: F32Array, group_size: int) -> F32Array:
    """Mean over outputs of |w| relative to the largest of its group, [in]."""
    groups = np.abs(by_group(weight, group_size))
    largest = np.maximum(groups.max(axis=2, keepdims=True), SMALLEST)
    relative: F32Array = (groups / largest).reshape(weight.shape).mean(axis=0)
    return relative


def _mean_over(values: F32Array, shared: npt.NDArray[np.intp]) -> F32Array:
    """Every input's value replaced by the mean over those with the same source, and not 0."""
    totals = np.bincount(shared, weights=values) / np.maximum(np.bincount(shared), 1)
    return np.maximum(totals[shared].astype(np.float32), SMALLEST)


def _balanced(scale: F32Array) -> F32Array:
    """Scaled so that its largest and smallest are reciprocal; only ratios matter."""
    limited = np.maximum(scale, SMALLEST)
    balanced: F32Array = limited / np.sqrt(limited.max() * limited.min())
    return balanced
