"""Quantising a model's weights while it loads (`--quantization`).

A weight that the file holds quantised is dequantised first: what counts is the scheme asked for.
Exercised by `pytest tests/unit/loading/test_quantize.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hasten.core.loading.errors import LoadError
from hasten.core.models.weights import EMBED, LM_HEAD, WeightSpec
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight, StackedWeight, Weight
from hasten.quant.load_time import LOAD_TIME_SCHEMES


@dataclass(frozen=True, slots=True)
class LoadTimeQuantization:
    """A scheme of `LOAD_TIME_SCHEMES` for the linear layers; `lm_head`: for the head as well.

    Where the head is tied to the embedding, both become what the head becomes. Raises LoadError
    for a scheme that does not exist.
    """

    scheme: str
    lm_head: bool = False

    def __post_init__(self) -> None:
        if self.scheme not in LOAD_TIME_SCHEMES:
            raise LoadError(
                f"--quantization {self.scheme} is not supported; "
                f"supported: {', '.join(LOAD_TIME_SCHEMES)}"
            )

    @property
    def key(self) -> str:
        """Tells this conversion from others, for the hash of the weights."""
        return f"{self.scheme}+lm_head" if self.lm_head else self.scheme

    def apply(
        self, specs: Iterable[WeightSpec], weights: Mapping[WeightName, Weight]
    ) -> dict[WeightName, Weight]:
        """All weights, those concerned converted. Raises LoadError naming the weight."""
        head = LM_HEAD if LM_HEAD in weights else EMBED
        converted = dict(weights)
        for spec in specs:
            if spec.quantizable or (self.lm_head and spec.name == head):
                converted[spec.name] = self._convert(spec.name, weights[spec.name])
        return converted

    def _convert(self, name: WeightName, weight: Weight) -> Weight:
        if isinstance(weight, StackedWeight):
            weight = DenseWeight(weight.dequantize())
        try:
            return LOAD_TIME_SCHEMES[self.scheme](weight)
        except ValueError as error:
            raise LoadError(f"--quantization {self.scheme}: weight {name!r}: {error}") from error
