"""The ways to quantise a layer: round to nearest, AWQ, GPTQ, fp8.

Each takes a calibrated layer and gives back its tensors with the linears quantised; AWQ also moves
scales into norms and into the linears that feed others. Exercised by
`pytest tests/unit/quant/test_calibrated.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from hasten.kernels.weights import ActivationScheme, DenseWeight
from hasten.quant.awq import search_scale
from hasten.quant.calibration import NormProducer
from hasten.quant.fp8 import E4M3_MAX, Granularity, quantize_fp8
from hasten.quant.gptq import quantize_gptq
from hasten.quant.rounding import IntGrid, quantize_nearest, search_shrink

if TYPE_CHECKING:
    from hasten.kernels.weights import F32Array, Matrix
    from hasten.quant.calibration import CalibratedLayer, LinearGroup, Producer, Weights


@dataclass(frozen=True, slots=True)
class NearestMethod:
    """Round to nearest over the whole range of each group; calibration is not used."""

    grid: IntGrid

    def quantize(self, layer: CalibratedLayer) -> Weights:
        weights = dict(layer.weights)
        for group in layer.groups:
            for name in group.weights:
                weights[name] = quantize_nearest(weights[name].dequantize(), self.grid)
        return weights


@dataclass(frozen=True, slots=True)
class GptqMethod:
    """GPTQ on the inputs' second moments."""

    grid: IntGrid

    def quantize(self, layer: CalibratedLayer) -> Weights:
        weights = dict(layer.weights)
        for group in layer.groups:
            gram = layer.statistics[group.name].gram
            for name in group.weights:
                weights[name] = quantize_gptq(weights[name].dequantize(), gram, self.grid)
        return weights


@dataclass(frozen=True, slots=True)
class AwqMethod:
    """AWQ: scales moved between weights, then clipping, then rounding to nearest."""

    grid: IntGrid

    def quantize(self, layer: CalibratedLayer) -> Weights:
        weights = dict(layer.weights)
        scales = {group.name: self._move_scale(layer, group, weights) for group in layer.groups}
        for group in layer.groups:
            scale = scales[group.name]
            gram = layer.statistics[group.name].gram / np.outer(scale, scale)
            for name in group.weights:
                matrix = weights[name].dequantize()
                shrink = search_shrink(matrix, gram, self.grid)
                weights[name] = quantize_nearest(matrix, self.grid, shrink)
        return weights

    def _move_scale(self, layer: CalibratedLayer, group: LinearGroup, weights: Weights) -> F32Array:
        """Scale the group's inputs up in its weights, down in their producer; the scale [in]."""
        statistics = layer.statistics[group.name]
        if group.producer is None:
            return np.ones(len(statistics.gram), np.float32)
        scale = search_scale(
            [layer.weights[name].dequantize() for name in group.weights],
            statistics.gram,
            statistics.mean_magnitude,
            self.grid,
            group.producer.sources(len(statistics.gram)),
        )
        scale = _divide_producer(weights, group.producer, scale)
        for name in group.weights:
            weights[name] = DenseWeight(weights[name].dequantize() * scale)
        return scale


@dataclass(frozen=True, slots=True)
class Fp8Method:
    """e4m3 weights; static activations get the largest calibrated input as their range."""

    granularity: Granularity
    activations: ActivationScheme

    def quantize(self, layer: CalibratedLayer) -> Weights:
        weights = dict(layer.weights)
        for group in layer.groups:
            scale = self._input_scale(layer.statistics[group.name].largest)
            for name in group.weights:
                weights[name] = quantize_fp8(
                    weights[name], self.granularity, self.activations, scale
                )
        return weights

    def _input_scale(self, largest: float) -> float | None:
        if self.activations is not ActivationScheme.STATIC:
            return None
        return float(ml_dtypes.bfloat16(largest / E4M3_MAX if largest > 0 else 1.0))


def _divide_producer(weights: Weights, producer: Producer, scale: F32Array) -> F32Array:
    """Divide what makes the inputs by their scale; returns the scale that this came to."""
    if isinstance(producer, NormProducer):
        divided, scale = _divide_norm(weights[producer.norm], scale)
        weights[producer.norm] = divided
        return scale
    by_row = np.ones(weights[producer.matrix].shape[0], np.float32)
    by_row[producer.rows] = scale
    weights[producer.matrix] = DenseWeight(weights[producer.matrix].dequantize() / by_row[:, None])
    if producer.bias is not None:
        bias = weights[producer.bias]
        weights[producer.bias] = _stored_like(bias, bias.dequantize() / by_row)
    return scale


def _divide_norm(norm: Matrix, scale: F32Array) -> tuple[DenseWeight, F32Array]:
    """The norm over the scale, rounded to its own type, and the exact ratio of old to new.

    Taking the ratio as the scale keeps the product of norm and weights what it was. Elements that
    the type cannot hold divided stay as they are.
    """
    before = norm.dequantize()
    after = _stored_like(norm, before / scale).dequantize()
    holds = np.isfinite(after) & (after != 0)
    kept = _stored_like(norm, np.where(holds, after, before))
    ratio = np.divide(before, after, out=np.ones_like(before), where=holds)
    return kept, ratio


def _stored_like(tensor: Matrix, values: F32Array) -> DenseWeight:
    assert isinstance(tensor, DenseWeight), "norms and biases are dense"
    return DenseWeight(values.astype(tensor.data.dtype))
