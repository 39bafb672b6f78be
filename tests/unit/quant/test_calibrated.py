"""AWQ and GPTQ: against slow oracles, and against rounding to nearest."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hasten.kernels.weights import ActivationScheme, DenseWeight, F32Array, Fp8Weight
from hasten.quant.awq import output_error, search_scale
from hasten.quant.calibration import (
    CalibratedLayer,
    InputStatistics,
    LinearGroup,
    LinearProducer,
    Method,
    NormProducer,
    Weights,
)
from hasten.quant.fp8 import Granularity
from hasten.quant.gptq import DAMPING, quantize_gptq
from hasten.quant.methods import AwqMethod, Fp8Method, GptqMethod, NearestMethod
from hasten.quant.rounding import IntGrid, fit_scales, round_to_grid, search_shrink

RNG = np.random.default_rng(21)
GRID = IntGrid(4, 32, symmetric=False)


def correlated_inputs(num_rows: int, width: int) -> F32Array:
    """Inputs as models have them: correlated, and a few of them much larger."""
    mixed = RNG.standard_normal((num_rows, width)) @ RNG.standard_normal((width, width))
    mixed[:, ::17] *= 20
    return np.asarray(mixed / np.sqrt(width), np.float32)


def gptq_slowly(weight: F32Array, gram: F32Array, grid: IntGrid) -> F32Array:
    """Optimal Brain Surgeon, one column at a time, solving for the rest anew each time."""
    scales = fit_scales(weight, grid, search_shrink(weight, gram, grid))
    damped = gram.astype(np.float64) + np.eye(len(gram)) * DAMPING * np.diagonal(gram).mean()
    remaining, result = weight.astype(np.float64), np.zeros(weight.shape)
    order = list(np.argsort(-np.diagonal(gram), kind="stable"))
    while order:
        column, rest = order[0], order[1:]
        inverse = np.linalg.inv(damped[np.ix_(order, order)])
        group = column // grid.group_size
        scale, zero = scales.scale[:, group].astype(np.float64), scales.zero[:, group]
        code = np.clip(np.rint(remaining[:, column] / scale) + zero, 0, grid.largest)
        result[:, column] = (code - zero) * scale
        error = (remaining[:, column] - result[:, column]) / inverse[0, 0]
        remaining[:, rest] -= np.outer(error, inverse[0, 1:])
        order = rest
    return result.astype(np.float32)


def test_gptq_is_optimal_brain_surgeon() -> None:
    weight = RNG.standard_normal((24, 160)).astype(np.float32)
    inputs = correlated_inputs(400, 160)
    gram = inputs.T @ inputs
    slow = gptq_slowly(weight, gram, GRID)
    fast = quantize_gptq(weight, gram, GRID).dequantize()
    assert (np.abs(slow - fast) > 1e-4).mean() < 0.01  # ties fall either way


def test_gptq_halves_the_output_error_of_rounding() -> None:
    weight = RNG.standard_normal((48, 128)).astype(np.float32)
    inputs = correlated_inputs(500, 128)
    gram = inputs.T @ inputs
    nearest = output_error(weight, round_to_grid(weight, GRID), gram)
    assert output_error(weight, quantize_gptq(weight, gram, GRID).dequantize(), gram) < nearest / 2


def test_gptq_takes_inputs_that_never_occur() -> None:
    weight = RNG.standard_normal((8, 64)).astype(np.float32)
    inputs = correlated_inputs(100, 64)
    inputs[:, 3] = 0
    quantized = quantize_gptq(weight, inputs.T @ inputs, GRID).dequantize()
    assert np.isfinite(quantized).all()


def test_awq_scale_lowers_the_error_where_inputs_differ() -> None:
    weight = RNG.standard_normal((48, 128)).astype(np.float32)
    inputs = correlated_inputs(500, 128)
    gram, magnitude = inputs.T @ inputs, np.abs(inputs).mean(axis=0)
    scale = search_scale([weight], gram, magnitude, GRID, np.arange(128))
    nearest = output_error(weight, round_to_grid(weight, GRID), gram)
    scaled = output_error(weight, round_to_grid(weight * scale, GRID) / scale, gram)
    assert scaled < 0.6 * nearest
    assert scale[::17].mean() > scale.mean()


def test_awq_scales_are_shared_where_sources_are() -> None:
    sources = np.repeat(np.arange(32), 4)
    weight = RNG.standard_normal((48, 128)).astype(np.float32)
    inputs = correlated_inputs(500, 128)
    magnitude = np.abs(inputs).mean(axis=0)
    scale = search_scale([weight], inputs.T @ inputs, magnitude, GRID, sources)
    assert len(np.unique(scale.reshape(32, 4).T.copy().view(np.uint32), axis=0)) == 1


def small_layer() -> tuple[CalibratedLayer, Callable[[Weights, F32Array], F32Array]]:
    """norm -> (up, gate) -> up * sigmoid(gate) -> down, and how to compute it."""
    dtype = ml_dtypes.bfloat16
    weights: Weights = {
        "norm": DenseWeight((1 + RNG.standard_normal(64) / 4).astype(dtype)),
        "up": DenseWeight(RNG.standard_normal((96, 64)).astype(np.float32)),
        "up.bias": DenseWeight(RNG.standard_normal(96).astype(np.float32)),
        "gate": DenseWeight(RNG.standard_normal((96, 64)).astype(np.float32)),
        "down": DenseWeight(RNG.standard_normal((32, 96)).astype(np.float32)),
    }
    groups = (
        LinearGroup("in", ("up", "gate"), NormProducer("norm")),
        LinearGroup("out", ("down",), LinearProducer("up", "up.bias", np.arange(96))),
    )
    inputs = correlated_inputs(300, 64)

    def inner(tensors: Weights, x: F32Array) -> tuple[F32Array, F32Array]:
        values = {name: tensor.dequantize() for name, tensor in tensors.items()}
        normed = x * values["norm"]
        gate = 1 / (1 + np.exp(-normed @ values["gate"].T / 8))
        gated = (normed @ values["up"].T + values["up.bias"]) * gate
        return normed.astype(np.float32), gated.astype(np.float32)

    def compute(tensors: Weights, x: F32Array) -> F32Array:
        result: F32Array = inner(tensors, x)[1] @ tensors["down"].dequantize().T
        return result

    statistics = {"in": InputStatistics.empty(64), "out": InputStatistics.empty(96)}
    for name, rows in zip(statistics, inner(weights, inputs), strict=True):
        statistics[name].add(rows)
    return CalibratedLayer(weights, groups, statistics), compute


def relative_error(method: Method) -> float:
    layer, compute = small_layer()
    x = correlated_inputs(200, 64)
    exact = compute(layer.weights, x)
    return float(np.linalg.norm(compute(method.quantize(layer), x) - exact) / np.linalg.norm(exact))


def test_awq_moves_scales_without_changing_the_function() -> None:
    fine = IntGrid(8, 32, symmetric=False)
    assert relative_error(AwqMethod(fine)) < 0.01


def test_awq_keeps_the_types_of_norms() -> None:
    layer, _ = small_layer()
    norm = AwqMethod(GRID).quantize(layer)["norm"]
    assert isinstance(norm, DenseWeight)
    assert norm.data.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("method", [AwqMethod(GRID), GptqMethod(GRID)])
def test_calibrated_methods_beat_rounding(method: Method) -> None:
    errors = [relative_error(method) for _ in range(3)]
    nearest = [relative_error(NearestMethod(GRID)) for _ in range(3)]
    assert np.mean(errors) < 0.8 * np.mean(nearest)


@pytest.mark.parametrize("scheme", list(ActivationScheme))
def test_fp8(scheme: ActivationScheme) -> None:
    granularity = Granularity.TENSOR if scheme is ActivationScheme.STATIC else Granularity.CHANNEL
    layer, _ = small_layer()
    weights = Fp8Method(granularity, scheme).quantize(layer)
    for name, group in (("up", "in"), ("gate", "in"), ("down", "out")):
        weight = weights[name]
        assert isinstance(weight, Fp8Weight)
        assert weight.activations is scheme
        if scheme is ActivationScheme.STATIC:
            largest = layer.statistics[group].largest
            assert weight.input_scale == pytest.approx(largest / 448, rel=2**-8)
