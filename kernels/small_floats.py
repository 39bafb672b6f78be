"""bf16 and e4m3 in numpy: the types of `ml_dtypes`, or the same numbers without it.

Where `ml_dtypes` is not installed, as on a borrowed GPU (`make gpu-check`), bf16 numbers are
float32 ones that bf16 can hold, and e4m3 numbers are their codes in uint8. Weights may hold either
(`kernels.weights`). Exercised by `pytest tests/unit/kernels/test_small_floats.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import ml_dtypes
except ImportError:
    HAS_ML_DTYPES = False
else:
    HAS_ML_DTYPES = True

F32Array = npt.NDArray[np.float32]

E4M3_NAN = 0x7F


def as_bf16(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """The nearest bf16 numbers, ties to even."""
    if HAS_ML_DTYPES:
        return np.asarray(values).astype(ml_dtypes.bfloat16)
    return round_to_bf16(values)


def as_e4m3(values: npt.ArrayLike) -> npt.NDArray[Any]:
    """The nearest e4m3 numbers, ties to even; beyond +-448 is NaN."""
    if HAS_ML_DTYPES:
        return np.asarray(values).astype(ml_dtypes.float8_e4m3fn)
    return e4m3_codes(values)


def e4m3_values(data: npt.NDArray[Any]) -> F32Array:
    """What e4m3 numbers, or their codes, stand for."""
    values: F32Array = _e4m3_table()[data] if data.dtype == np.uint8 else data.astype(np.float32)
    return values


def round_to_bf16(values: npt.ArrayLike) -> F32Array:
    """As `as_bf16`, in float32."""
    wide = np.array(values, dtype=np.float32)
    bits = wide.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000
    return np.where(np.isnan(wide), wide, rounded.astype(np.uint32).view(np.float32))


def e4m3_codes(values: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """As `as_e4m3`, as codes: sign, four bits of exponent, three of mantissa."""
    wide = np.asarray(values, dtype=np.float32)
    positive = _e4m3_table()[:E4M3_NAN].astype(np.float64)
    # The last step is as wide as the one before it: 464 is a tie between 448 and nothing.
    middles = np.append((positive[1:] + positive[:-1]) / 2, 464.0)
    size = np.abs(wide).astype(np.float64)
    code = np.searchsorted(middles, size)
    is_tie = middles[np.minimum(code, len(middles) - 1)] == size
    code += is_tie & (code % 2 == 1)
    code = np.where(np.isnan(wide), E4M3_NAN, np.minimum(code, E4M3_NAN))
    codes: npt.NDArray[np.uint8] = (code + 128 * np.signbit(wide)).astype(np.uint8)
    return codes


@cache
def _e4m3_table() -> F32Array:
    """The number that each code stands for."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    size = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[code % 128 == E4M3_NAN] = np.nan
    return np.where(code >= 128, -size, size).astype(np.float32)
