"""From a checkpoint's tensors to the weights of a program, whatever file they come from.

Exercised by `pytest tests/unit/loading/test_directory.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from hasten.core.loading.errors import LoadError
from hasten.core.models import TensorSpec, WeightSpec
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight, Matrix, Weight, stack


class TensorSource(Protocol):
    """The tensors of one checkpoint, by the names that Hugging Face checkpoints use.

    `where` names the file or folder in messages.
    """

    where: str

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, outputs first, without reading any."""
        ...

    def local_name(self, key: str) -> str:
        """What the file itself calls the tensor."""
        ...

    def read(self, key: str) -> Matrix:
        """One tensor. Raises LoadError when its type is not supported or its data is damaged."""
        ...


def read_weights(specs: Iterable[WeightSpec], source: TensorSource) -> dict[WeightName, Weight]:
    """Every weight that `specs` ask for.

    Raises LoadError when a tensor is missing, has another shape, or belongs to nothing.
    """
    wanted = list(specs)
    check_tensors((part for spec in wanted for part in spec.parts), source)
    return {spec.name: _read_weight(spec, source) for spec in wanted}


def check_tensors(tensors: Iterable[TensorSpec], source: TensorSource) -> None:
    """Raise LoadError unless the source holds just these tensors, in these shapes."""
    shapes = source.shapes()
    for tensor in tensors:
        shape = shapes.pop(tensor.key, None)
        name = source.local_name(tensor.key)
        if shape is None:
            raise LoadError(f"{source.where}: tensor {name!r} is missing")
        if shape != tensor.shape:
            raise LoadError(
                f"{source.where}: tensor {name!r} has shape {list(shape)}, "
                f"the configuration asks for {list(tensor.shape)}"
            )
    if shapes:
        name = source.local_name(next(iter(shapes)))
        more = f" (and {len(shapes) - 1} more)" if len(shapes) > 1 else ""
        raise LoadError(f"{source.where}: tensor {name!r} is not part of this architecture{more}")


def _read_weight(spec: WeightSpec, source: TensorSource) -> Weight:
    parts = [source.read(part.key) for part in spec.parts]
    if spec.offset:
        parts = [DenseWeight(part.dequantize() + np.float32(spec.offset)) for part in parts]
    if len(spec.parts[0].shape) == 1:
        return _concatenate_vectors(parts)
    return parts[0] if len(parts) == 1 else stack(parts)


def _concatenate_vectors(parts: list[Matrix]) -> Weight:
    """Norms and biases, copied: a view of so few bytes would keep the whole file mapped."""
    dense = [DenseWeight(part.data.copy()) for part in _dense(parts)]
    return dense[0] if len(dense) == 1 else stack(dense)


def _dense(parts: list[Matrix]) -> Iterator[DenseWeight]:
    for part in parts:
        yield part if isinstance(part, DenseWeight) else DenseWeight(part.dequantize())
