"""The tensors of a GGUF file under the names and in the row order of Hugging Face checkpoints.

Names are translated by `gguf_names`. Rows: converters of some architectures interleave the rows of
q and k (row 2 j + s of a head holds rotary component j of half s), which is undone here, for packed
rows as well, since a row is a whole number of blocks.
Exercised by `pytest tests/unit/loading/test_gguf.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hasten.core.loading.errors import LoadError
from hasten.core.loading.gguf_families import FAMILIES
from hasten.core.loading.gguf_file import GGUFFile, GGUFTensor
from hasten.core.loading.gguf_names import TensorNames
from hasten.core.loading.gguf_rope import ROPE_TENSORS
from hasten.core.models.config import DecoderConfig
from hasten.kernels.weights import DenseWeight, Matrix
from hasten.quant.gguf_blocks import decode


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor, or one expert's share of one: the leading index that it has there."""

    tensor: GGUFTensor
    expert_idx: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert_idx is None else self.tensor.shape[1:]

    def decode(self) -> Matrix:
        raw = self.tensor.raw
        if self.expert_idx is not None:
            num_rows = self.tensor.shape[1]
            raw = raw[self.expert_idx * num_rows : (self.expert_idx + 1) * num_rows]
        return decode(self.tensor.type, raw)


class GGUFSource:
    """A `TensorSource` over an open GGUF file."""

    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        self.where = str(file.path)
        self._config = config
        self._names = TensorNames.of(config)
        self._stored = {
            key: stored
            for name, tensor in file.tensors.items()
            if name not in ROPE_TENSORS  # read with the configuration
            for key, stored in self._shares(name, tensor)
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: stored.shape for key, stored in self._stored.items()}

    def local_name(self, key: str) -> str:
        stored = self._stored.get(key)
        return self._names.gguf_name(key) if stored is None else stored.tensor.name

    def read(self, key: str) -> Matrix:
        stored = self._stored[key]
        try:
            weight = stored.decode()
        except ValueError as error:
            raise LoadError(f"{self.where}: tensor {stored.tensor.name!r}: {error}") from error
        if FAMILIES[self._config.family].interleaved:
            weight = self._undo_interleaving(key, weight)
        return _as_vector(weight) if len(stored.shape) == 1 else weight

    def _shares(self, name: str, tensor: GGUFTensor) -> Iterator[tuple[str, _Stored]]:
        """The tensor by its checkpoint name; a tensor of all experts by each of theirs."""
        if len(tensor.shape) < 3:
            for key in self._names.checkpoint_keys(name, num_experts=0):
                yield key, _Stored(tensor, None)
            return
        for idx, key in enumerate(self._names.checkpoint_keys(name, tensor.shape[0])):
            yield key, _Stored(tensor, idx)

    def _undo_interleaving(self, key: str, weight: Matrix) -> Matrix:
        if ".self_attn.q_proj." in key:
            num_heads = self._config.num_heads
        elif ".self_attn.k_proj." in key:
            num_heads = self._config.num_kv_heads
        else:
            return weight
        if key.endswith(".bias"):
            weight = DenseWeight(_as_vector(weight).data[:, None])
        return weight.take_rows(half_split_rows(num_heads, self._config.head_size))


def half_split_rows(num_heads: int, head_size: int) -> npt.NDArray[np.intp]:
    """For each row in half-split order, the row that holds it in interleaved order."""
    rows = np.arange(num_heads * head_size).reshape(num_heads, head_size // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _as_vector(weight: Matrix) -> DenseWeight:
    values = weight.data if isinstance(weight, DenseWeight) else weight.dequantize()
    return DenseWeight(values.reshape(-1))
