"""Conversions under the interpreter are those of the hardware: nearest even, clamped."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from hasten.kernels.philox import gumbel_noise
from hasten.kernels.triton.device import numbers, sample

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def convert_kernel(x: Any, result: Any, TO_E4M3: tl.constexpr, SIZE: tl.constexpr) -> None:  # noqa: N803 (Triton's custom)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at)
    if TO_E4M3:
        tl.store(result + at, numbers.to_e4m3(value))
    else:
        tl.store(result + at, numbers.to_bf16(value))


@triton.jit  # type: ignore[untyped-decorator]  # triton has no types
def noise_kernel(result: Any, seed: Any, SIZE: tl.constexpr) -> None:  # noqa: N803 (Triton's custom)
    at = tl.arange(0, SIZE)
    low = tl.load(seed).to(tl.uint32, bitcast=True)
    high = tl.load(seed + 1).to(tl.uint32, bitcast=True)
    position = tl.load(seed + 2)
    tl.store(result + at, sample.gumbel_noise(at, position, position - 3, low, high))


def converted(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    padded = torch.nn.functional.pad(values, (0, -len(values) % BLOCK))
    result = torch.zeros(len(padded), dtype=dtype)
    is_e4m3 = dtype == torch.float8_e4m3fn
    convert_kernel[(len(padded) // BLOCK,)](padded, result, TO_E4M3=is_e4m3, SIZE=BLOCK)
    return result[: len(values)]


def awkward_numbers() -> torch.Tensor:
    """Every e4m3 number, what lies between, ties, both signs, far too large and far too small."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    exact = codes[codes.isfinite()].sort().values
    ties = (exact[1:] + exact[:-1]) / 2
    rng = np.random.default_rng(3)
    spread = rng.standard_normal(3000) * 2.0 ** rng.integers(-14, 12, 3000)
    near = torch.cat((torch.nextafter(ties, ties + 1), torch.nextafter(ties, ties - 1)))
    return torch.cat((exact, ties, near, torch.from_numpy(spread).float()))


def test_e4m3_is_nearest_even_and_clamped() -> None:
    values = awkward_numbers()
    wanted = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(converted(values, torch.float8_e4m3fn).float(), wanted.float())


def test_bf16_is_nearest_even() -> None:
    values = awkward_numbers()
    ties = (values.view(torch.int32) & -65536 | 0x8000).view(torch.float32)
    values = torch.cat((values, ties, torch.tensor([torch.inf, -torch.inf, 3.4e38])))
    assert torch.equal(converted(values, torch.bfloat16), values.to(torch.bfloat16))
    assert converted(torch.tensor([torch.nan]), torch.bfloat16).isnan().all()


def test_noise_is_that_of_the_definition() -> None:
    result = torch.zeros(64)
    low, high = 0x9ABCDEF1, 0x12345678
    words = np.array([low, high, 5], dtype=np.uint32).view(np.int32)
    noise_kernel[(1,)](result, torch.from_numpy(words), SIZE=64)
    wanted = gumbel_noise(high << 32 | low, 5, 2, np.arange(64))
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-6, atol=1e-6)
