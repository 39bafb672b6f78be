"""Numbers without `ml_dtypes` are those that it gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hasten.kernels.small_floats import as_e4m3, e4m3_codes, e4m3_values, round_to_bf16


def awkward() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Every e4m3 number, the ties between them and their neighbours, and a wide spread."""
    exact = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    ties = np.append((exact[1:] + exact[:-1]) / 2, [464, -464])
    near = [np.nextafter(ties, np.float32(way)) for way in (-np.inf, np.inf)]
    rng = np.random.default_rng(5)
    spread = rng.standard_normal(2000) * 2.0 ** rng.integers(-20, 14, 2000)
    odd = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3.4e38]
    return np.concatenate([exact, ties, *near, spread, odd]).astype(np.float32)


def test_e4m3() -> None:
    values = awkward()
    with np.errstate(invalid="ignore"):
        wanted = values.astype(ml_dtypes.float8_e4m3fn)
    found = e4m3_codes(values)
    np.testing.assert_array_equal(e4m3_values(found), wanted.astype(np.float32))
    is_number = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(found[is_number], wanted.view(np.uint8)[is_number])
    np.testing.assert_array_equal(e4m3_values(as_e4m3(values)), e4m3_values(found))


def test_bf16() -> None:
    values = awkward()
    ties = ((values.view(np.uint32) & 0xFFFF0000) | 0x8000).view(np.float32)
    values = np.concatenate([values, ties])
    with np.errstate(invalid="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_to_bf16(values), wanted)
