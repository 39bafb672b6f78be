"""A safetensors checkpoint that another tool quantised, as a `TensorSource`.

The checkpoint holds several tensors per quantised linear (`X.qweight`, `X.scales` ...); to the rest
of loading they are the one matrix `X.weight`. Exercised by
`pytest tests/unit/loading/test_quantized_source.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy.typing as npt
from hasten.core.loading.errors import LoadError
from hasten.core.loading.safetensors_files import SafetensorsFiles, SafetensorsSource
from hasten.kernels.weights import Matrix
from hasten.quant.formats import FormatError, QuantFormat, Tensors, recognise

Answer = TypeVar("Answer")

WEIGHT = ".weight"
_ATTENTION = re.compile(r"model\.layers\.(0|[1-9]\d{0,5})\.self_attn")


class QuantizedSource:
    """The plain tensors of a checkpoint, and its quantised linears as one matrix each."""

    def __init__(
        self,
        files: SafetensorsFiles,
        quantization_config: Mapping[str, Any],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        """Raises LoadError when configuration and tensors do not fit together."""
        self.where = files.where
        self._arrays = StoredArrays(files)
        try:
            self._format: QuantFormat = recognise(quantization_config)
            self._linears = self._format.linears(self._arrays)
            self._kv_scales = self._format.kv_scales(self._arrays)
        except FormatError as error:
            raise LoadError(f"{self.where}: {error}") from error
        owned = {name for names in self._linears.values() for name in names}
        scales = {f"{name}.{kind}_scale" for name in self._kv_scales for kind in "kv"}
        self._plain = SafetensorsSource(files, ignored | owned | scales)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        quantised = {
            linear + WEIGHT: self._guarded(linear, self._format.shape) for linear in self._linears
        }
        return {**self._plain.shapes(), **quantised}

    def local_name(self, key: str) -> str:
        names = self._linears.get(key.removesuffix(WEIGHT))
        return key if names is None else names[0]

    def read(self, key: str) -> Matrix:
        linear = key.removesuffix(WEIGHT)
        if linear not in self._linears:
            return self._plain.read(key)
        return self._guarded(linear, self._format.read)

    def kv_scales(self) -> dict[int, tuple[float, float]]:
        """The static scales of K and V by layer. Raises LoadError when they belong to none."""
        found = {}
        for name, scales in self._kv_scales.items():
            match = _ATTENTION.fullmatch(name)
            if match is None:
                raise LoadError(f"{self.where}: tensor '{name}.k_scale' belongs to no layer")
            found[int(match[1])] = scales.k, scales.v
        return found

    def _guarded(self, linear: str, ask: Callable[[Tensors, str], Answer]) -> Answer:
        """What the format answers about one linear, its errors as `LoadError`."""
        try:
            return ask(self._arrays, linear)
        except FormatError as error:
            raise LoadError(f"{self.where}: {error}") from error


class StoredArrays(Mapping[str, npt.NDArray[Any]]):
    """Tensors by name, viewed when asked for."""

    def __init__(self, files: SafetensorsFiles) -> None:
        self._tensors = files.tensors

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._tensors[name].array()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors
