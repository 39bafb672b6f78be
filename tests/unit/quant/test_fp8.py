"""Converting plain weights to e4m3."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hasten.kernels.weights import ActivationScheme, DenseWeight
from hasten.quant.fp8 import Granularity, quantize_fp8, to_e4m3

RNG = np.random.default_rng(3)
EVERY_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
FINITE = np.sort(EVERY_E4M3[np.isfinite(EVERY_E4M3)])


def test_conversion_takes_the_nearest_number_and_clamps() -> None:
    values = RNG.standard_normal(2000).astype(np.float32) * np.float32(100)
    got = to_e4m3(values).astype(np.float32)
    distance = np.abs(FINITE[None, :] - np.clip(values, -448, 448)[:, None]).min(axis=1)
    np.testing.assert_array_equal(np.abs(got - np.clip(values, -448, 448)), distance)
    limits = to_e4m3(np.array([500.0, -1e30, np.inf], np.float32)).astype(np.float32)
    assert limits.tolist() == [448.0, -448.0, 448.0]


@pytest.mark.parametrize("granularity", list(Granularity))
@pytest.mark.parametrize("shape", [(130, 200), (1, 128), (256, 64), (3, 1)])
def test_error_is_half_a_step_of_the_mantissa(
    granularity: Granularity, shape: tuple[int, int]
) -> None:
    values = RNG.standard_normal(shape).astype(np.float32)
    weight = quantize_fp8(DenseWeight(values), granularity)
    error = np.abs(weight.dequantize() - values)
    scale = weight.scale.astype(np.float32)
    smallest = scale.max() * 2.0**-10  # half the distance of subnormals
    assert (error <= np.abs(values) * 2.0**-4 + smallest).all()
    assert weight.num_bytes == values.size + scale.size * 2


def test_blocks_have_their_own_range() -> None:
    values = np.ones((130, 130), np.float32)
    values[128:, :] = 1000
    values[:, 128:] *= 7
    weight = quantize_fp8(DenseWeight(values), Granularity.BLOCK, ActivationScheme.TOKEN_GROUP)
    assert weight.scale.shape == (2, 2)
    np.testing.assert_allclose(weight.dequantize(), values, rtol=5e-3)


def test_zeros_stay_zero() -> None:
    weight = quantize_fp8(DenseWeight(np.zeros((4, 8), np.float32)))
    assert weight.scale.astype(np.float32).tolist() == [[1.0]] * 4
    assert not weight.dequantize().any()


def test_numbers_must_be_finite() -> None:
    with pytest.raises(ValueError, match="not finite"):
        quantize_fp8(DenseWeight(np.array([[np.nan]], np.float32)))
