"""Calibrated quantisation of a model, one layer in memory at a time.

    for each layer, in order:
        1. run it as it is over the calibration tokens, gathering X^T X of every group's inputs
        2. quantise its linears with them (AWQ first moves scales between weights)
        3. run it quantised: what comes out is what the next layer is calibrated with

The model is seen through `CalibratableModel`: layers in order, each with groups of linears that
share an input. Hidden states of all calibration tokens stay in memory, [num_tokens, hidden] fp32.
Not here: models (`hasten.core.models`), files (`hasten.core.quantize`). Exercised by
`pytest tests/unit/quant/test_calibrated.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from hasten.kernels.weights import F32Array, Matrix

if TYPE_CHECKING:
    import numpy.typing as npt

Weights = dict[str, Matrix]
"""A layer's tensors by checkpoint name: matrices (`X.weight`), norms and biases."""

Observer = Callable[[str, F32Array], None]
"""Called with a group's name and some rows of its inputs [rows, in]."""


@dataclass(frozen=True, slots=True)
class NormProducer:
    """A group's inputs come from a norm: input i is proportional to its element i."""

    norm: str

    def sources(self, width: int) -> npt.NDArray[np.intp]:
        """What each input is made by: one element each."""
        return np.arange(width)


@dataclass(frozen=True, slots=True)
class LinearProducer:
    """A group's inputs come from a linear: input i is proportional to output `rows[i]` of it."""

    matrix: str
    bias: str | None
    rows: npt.NDArray[np.intp]

    def sources(self, width: int) -> npt.NDArray[np.intp]:
        assert len(self.rows) == width
        return self.rows


Producer = NormProducer | LinearProducer


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Linears that read the same inputs; `weights` are the names of their matrices."""

    name: str
    weights: tuple[str, ...]
    producer: Producer | None


class CalibratableModel(Protocol):
    """A model that can be run layer by layer on hidden states."""

    @property
    def num_layers(self) -> int: ...

    def groups(self, layer_idx: int) -> tuple[LinearGroup, ...]:
        """The layer's groups in order of computation; together they hold all its linears."""
        ...

    def weights(self, layer_idx: int) -> Weights:
        """The layer's tensors as the model has them, dense."""
        ...

    def run_layer(
        self,
        layer_idx: int,
        weights: Mapping[str, Matrix],
        hidden: F32Array,
        observe: Observer | None = None,
    ) -> LayerOutput:
        """Run the layer with these weights; `observe` sees the inputs of every group."""
        ...


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """What a layer made of its hidden states: new ones, and the largest |k| and |v| it cached."""

    hidden: F32Array  # [num_tokens, hidden]
    largest_k: float
    largest_v: float


@dataclass(slots=True)
class InputStatistics:
    """What calibration keeps of some activations: a group's inputs, or what the cache holds."""

    gram: F32Array  # [in, in] sum of x^T x
    magnitude: F32Array  # [in] sum of |x|
    largest: float = 0.0  # max |x|
    num_rows: int = 0

    @classmethod
    def empty(cls, width: int) -> InputStatistics:
        return cls(np.zeros((width, width), np.float32), np.zeros(width, np.float32))

    def add(self, rows: F32Array) -> None:
        magnitude = np.abs(rows)
        self.gram += rows.T @ rows
        self.magnitude += magnitude.sum(axis=0)
        self.largest = max(self.largest, float(magnitude.max(initial=0)))
        self.num_rows += len(rows)

    @property
    def mean_magnitude(self) -> F32Array:
        mean: F32Array = self.magnitude / np.float32(max(self.num_rows, 1))
        return mean


@dataclass(frozen=True, slots=True)
class CalibratedLayer:
    """One layer as a method sees it: tensors, groups, and what their inputs look like."""

    weights: Weights
    groups: tuple[LinearGroup, ...]
    statistics: Mapping[str, InputStatistics]  # by group


class Method(Protocol):
    """A way to quantise one layer."""

    def quantize(self, layer: CalibratedLayer) -> Weights:
        """The layer's tensors, its linears quantised. Raises ValueError when they cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class QuantizedLayer:
    """A finished layer, and what it makes of the calibration tokens.

    `relative_error` is the `wrong_share` over the hidden states of all tokens.
    """

    weights: Weights
    output: LayerOutput
    relative_error: float


def quantize_layer(
    model: CalibratableModel, layer_idx: int, hidden: F32Array, method: Method
) -> QuantizedLayer:
    """Calibrate and quantise one layer on the hidden states that enter it."""
    weights, groups = model.weights(layer_idx), model.groups(layer_idx)
    widths = {group.name: weights[group.weights[0]].shape[1] for group in groups}
    statistics = {name: InputStatistics.empty(width) for name, width in widths.items()}
    exact = model.run_layer(
        layer_idx, weights, hidden, lambda name, rows: statistics[name].add(rows)
    )
    quantized = method.quantize(CalibratedLayer(weights, groups, statistics))
    after = model.run_layer(layer_idx, quantized, hidden)
    return QuantizedLayer(quantized, after, wrong_share(after.hidden, exact.hidden, hidden))


def wrong_share(got: F32Array, wanted: F32Array, entering: F32Array) -> float:
    """|got - wanted| / |wanted - entering|: the share of what a layer adds that is wrong."""
    added = float(np.linalg.norm(wanted - entering))
    return float(np.linalg.norm(got - wanted)) / max(added, 1e-30)
