"""What `--quantization` makes of a matrix while a model loads: rounding, without calibration.

    fp8     e4m3 per channel, activations quantised per token
    int8    groups of 32, symmetric
    int4    groups of 64 (32 where 64 does not divide), asymmetric

Exercised by `pytest tests/unit/quant/test_load_time.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from hasten.kernels.weights import GroupedIntWeight, Matrix
from hasten.quant.fp8 import quantize_fp8
from hasten.quant.grouped_int import quantize_int4, quantize_int8

INT4_GROUP_SIZE = 64


def _int4(weight: Matrix) -> GroupedIntWeight:
    fits = weight.shape[1] % INT4_GROUP_SIZE == 0
    return quantize_int4(weight, INT4_GROUP_SIZE) if fits else quantize_int4(weight)


LOAD_TIME_SCHEMES: dict[str, Callable[[Matrix], Matrix]] = {
    "fp8": quantize_fp8,
    "int4": _int4,
    "int8": quantize_int8,
}
"""By the name that the flag takes. They raise ValueError for what they cannot convert."""
