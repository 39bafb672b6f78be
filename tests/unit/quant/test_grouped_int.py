"""Rounding to int8 and int4 in groups: how far a weight may move, and what is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels.weights import DenseWeight
from hasten.quant.grouped_int import quantize_int4, quantize_int8
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ml_dtypes import bfloat16

MATRICES = hnp.arrays(np.float32, (3, 64), elements=st.floats(-100, 100, width=32))

F32 = npt.NDArray[np.float32]


def by_group(values: F32) -> F32:
    return values.reshape(3, 2, 32)


@given(values=MATRICES)
def test_int8_moves_a_weight_by_half_a_step(values: F32) -> None:
    weight = quantize_int8(DenseWeight(values))
    step = np.abs(by_group(values)).max(axis=2) / 127
    # Half a step, and what rounding the scale to fp16 adds at the far end of the group.
    bound = step * (0.5 + 127 * 2**-11) + 127 * 2.0**-25
    error = np.abs(by_group(weight.dequantize() - values)).max(axis=2)
    assert (error <= bound * 1.001).all()


@given(values=MATRICES)
def test_int4_moves_a_weight_by_half_a_step(values: F32) -> None:
    weight = quantize_int4(DenseWeight(values))
    groups = by_group(values)
    step = (groups.max(axis=2) - groups.min(axis=2)) / 15
    # Half a step, and what rounding minimum and scale to fp16 adds.
    moved = np.abs(groups.min(axis=2)) * 2**-11 + 15 * step * 2**-10 + 16 * 2.0**-25
    error = np.abs(by_group(weight.dequantize() - values)).max(axis=2)
    assert (error <= (step / 2 + 2 * moved) * 1.001).all()


@pytest.mark.parametrize("quantize", [quantize_int4, quantize_int8])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_constants_are_exact_or_nearly(quantize: object, value: float) -> None:
    assert callable(quantize)
    values = np.full((3, 64), value, np.float32)
    assert quantize(DenseWeight(values)).dequantize() == pytest.approx(values, rel=1e-3)


def test_int8_of_int8_is_itself() -> None:
    random = np.random.default_rng(0)
    once = quantize_int8(DenseWeight(random.standard_normal((3, 64)).astype(np.float32)))
    twice = quantize_int8(once)
    assert np.array_equal(once.q, twice.q)
    assert np.array_equal(once.scale, twice.scale)


def test_bfloat16_weights_are_taken() -> None:
    values = np.linspace(-1, 1, 192, dtype=np.float32).reshape(3, 64)
    rounded = quantize_int8(DenseWeight(values.astype(bfloat16))).dequantize()
    assert np.abs(rounded - values).max() < 0.01


@pytest.mark.parametrize("quantize", [quantize_int4, quantize_int8])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e10])
def test_numbers_beyond_the_scales_are_refused(quantize: object, value: float) -> None:
    assert callable(quantize)
    values = np.zeros((3, 64), np.float32)
    values[1, 40] = value
    with pytest.raises(ValueError, match="not finite, or too large"):
        quantize(DenseWeight(values))


def test_groups_must_divide() -> None:
    with pytest.raises(ValueError, match="groups of 32 do not divide 48 inputs"):
        quantize_int8(DenseWeight(np.zeros((3, 48), np.float32)))
