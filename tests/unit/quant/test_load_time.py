"""The conversions behind `--quantization`."""

from __future__ import annotations

import numpy as np
import pytest
from hasten.kernels.weights import DenseWeight, Fp8Weight, GroupedIntWeight
from hasten.quant.load_time import LOAD_TIME_SCHEMES

RNG = np.random.default_rng(2)


def dense(out: int, width: int) -> DenseWeight:
    return DenseWeight(RNG.standard_normal((out, width)).astype(np.float32))


@pytest.mark.parametrize(
    ("scheme", "width", "group_size", "bits_per_weight"),
    [("int4", 128, 64, 4.5), ("int4", 96, 32, 5.0), ("int8", 64, 32, 8.5)],
)
def test_integers(scheme: str, width: int, group_size: int, bits_per_weight: float) -> None:
    weight = LOAD_TIME_SCHEMES[scheme](dense(12, width))
    assert isinstance(weight, GroupedIntWeight)
    assert weight.group_size == group_size
    assert weight.num_bytes * 8 == bits_per_weight * 12 * width


@pytest.mark.parametrize("scheme", LOAD_TIME_SCHEMES)
def test_error_is_that_of_the_scheme(scheme: str) -> None:
    plain = dense(64, 256)
    error = LOAD_TIME_SCHEMES[scheme](plain).dequantize() - plain.data
    bounds = {"fp8": 0.03, "int4": 0.12, "int8": 0.008}
    assert np.sqrt((error**2).mean()) < bounds[scheme]
    assert abs(error.mean()) < bounds[scheme] / 20


def test_fp8_is_per_channel() -> None:
    weight = LOAD_TIME_SCHEMES["fp8"](dense(12, 96))
    assert isinstance(weight, Fp8Weight)
    assert weight.block == (1, 96)


def test_groups_that_do_not_divide_are_refused() -> None:
    for scheme in ("int4", "int8"):
        with pytest.raises(ValueError, match="groups of 32 do not divide 48 inputs"):
            LOAD_TIME_SCHEMES[scheme](dense(4, 48))
