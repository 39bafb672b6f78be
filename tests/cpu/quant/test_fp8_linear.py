"""fp8 weights with quantised inputs on the reference backend, against numpy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Embed, Linear
from hasten.kernels.program import Capacity, KVGroupSpec, Program, Rows, WeightName
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    F32Array,
    Fp8Weight,
    Weight,
    stack,
)
from hasten.quant.fp8 import Granularity, quantize_fp8

RNG = np.random.default_rng(4)
GROUP = KVGroupSpec(num_layers=1, num_kv_heads=1, head_size=8, dtype=DType.F32)
TABLE, WEIGHT, BIAS = WeightName("table"), WeightName("weight"), WeightName("bias")


def run_linear(weight: Weight, x: F32Array, bias: F32Array | None = None) -> F32Array:
    """x [n, in] through one linear: the rows of x are an embedding, its ids 0 .. n - 1."""
    layout = PromptLayout((GROUP,), num_requests=1, max_len=len(x))
    program = Program(vocab_size=len(x), kv_groups=(GROUP,))
    rows = program.buffer("x", Rows.TOKENS, x.shape[1], DType.F32)
    out = program.buffer("out", Rows.TOKENS, weight.shape[0], DType.F32)
    program.add(Embed(TABLE, rows))
    program.add(Linear(rows, WEIGHT, out, None if bias is None else BIAS))
    program.tap("out", out)
    weights: dict[WeightName, Weight] = {TABLE: DenseWeight(x), WEIGHT: weight}
    if bias is not None:
        weights[BIAS] = DenseWeight(bias)
    backend = get_backend("reference")
    cache = backend.allocate_kv(layout.kv_plan())
    executable = backend.compile(program, weights, cache, Capacity(len(x), 1, 1, len(x)))
    executable.run(layout.batch([PromptChunk(np.arange(len(x), dtype=np.int32))]))
    return executable.tap("out")


def oracle(weight: Fp8Weight, x: F32Array) -> npt.NDArray[np.float64]:
    """x @ W^T row by row and group by group, in float64 from the rounded numbers on."""
    width = 128 if weight.activations is ActivationScheme.TOKEN_GROUP else x.shape[1]
    dense = weight.dequantize().astype(np.float64)
    result = np.zeros((len(x), weight.shape[0]))
    for row in range(len(x)):
        for start in range(0, x.shape[1], width):
            part = x[row, start : start + width]
            scale = np.float32(weight.input_scale or 1.0)
            if weight.activations is not ActivationScheme.STATIC:
                scale = np.abs(part).max() / np.float32(448)
            scale = scale if scale > 0 else np.float32(1)
            rounded = np.clip(part / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            values = rounded.astype(np.float64) * np.float64(scale)
            result[row] += dense[:, start : start + width] @ values
    return result


def inputs(num_rows: int, width: int) -> F32Array:
    x = RNG.standard_normal((num_rows, width)).astype(np.float32)
    x *= np.exp(RNG.standard_normal((num_rows, 1)) * 2).astype(np.float32)
    x[0] = 0
    return x


CASES = [
    (ActivationScheme.TOKEN, Granularity.CHANNEL, None),
    (ActivationScheme.TOKEN, Granularity.TENSOR, None),
    (ActivationScheme.TOKEN_GROUP, Granularity.BLOCK, None),
    (ActivationScheme.STATIC, Granularity.TENSOR, 0.003),
    (ActivationScheme.STATIC, Granularity.CHANNEL, 0.05),
]


@pytest.mark.parametrize(("scheme", "granularity", "input_scale"), CASES)
@pytest.mark.parametrize("shape", [(1, 64), (17, 200), (40, 384)])
def test_inputs_are_rounded_as_the_scheme_says(
    scheme: ActivationScheme,
    granularity: Granularity,
    input_scale: float | None,
    shape: tuple[int, int],
) -> None:
    out, width = 48, shape[1]
    plain = DenseWeight(RNG.standard_normal((out, width)).astype(np.float32) * np.float32(0.3))
    weight = quantize_fp8(plain, granularity, scheme, input_scale)
    x = inputs(*shape)
    expected = oracle(weight, x)
    bound = 1e-5 * (np.abs(x).astype(np.float64) @ np.abs(weight.dequantize()).T) + 1e-12
    assert (np.abs(run_linear(weight, x) - expected) <= bound).all()


def test_rounding_inputs_costs_what_it_should() -> None:
    plain = DenseWeight(RNG.standard_normal((64, 256)).astype(np.float32))
    x = inputs(30, 256)
    weight = quantize_fp8(plain, Granularity.CHANNEL, ActivationScheme.TOKEN)
    exact = x @ weight.dequantize().T
    error = np.linalg.norm(run_linear(weight, x) - exact) / np.linalg.norm(exact)
    assert 0.01 < error < 0.04


@pytest.mark.parametrize("scheme", [ActivationScheme.TOKEN, ActivationScheme.TOKEN_GROUP])
def test_a_rows_bits_do_not_depend_on_other_rows(scheme: ActivationScheme) -> None:
    plain = DenseWeight(RNG.standard_normal((96, 320)).astype(np.float32))
    weight = quantize_fp8(plain, Granularity.BLOCK, scheme)
    x = inputs(70, 320)
    together = run_linear(weight, x)
    for start, stop in ((0, 1), (5, 7), (33, 70)):
        np.testing.assert_array_equal(run_linear(weight, x[start:stop]), together[start:stop])


def test_a_bias_and_unlike_parts() -> None:
    bias = RNG.standard_normal(72).astype(np.float32)
    parts = [
        quantize_fp8(DenseWeight(RNG.standard_normal((rows, 64)).astype(np.float32)), *scheme)
        for rows, scheme in (
            (48, (Granularity.CHANNEL, ActivationScheme.TOKEN)),
            (24, (Granularity.TENSOR, ActivationScheme.STATIC, 0.02)),
        )
    ]
    x = inputs(5, 64)
    expected = np.concatenate([oracle(part, x) for part in parts], axis=1) + bias
    np.testing.assert_allclose(run_linear(stack(parts), x, bias), expected, rtol=1e-4, atol=1e-4)
