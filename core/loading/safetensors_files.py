"""Safetensors checkpoints: one file or several, memory-mapped.

Read here rather than by the safetensors package because its numpy reader copies every tensor; the
format is a length, a JSON directory and the bytes. Every offset is checked against the file.
Source: the format description in the safetensors repository (README, "Format").
Exercised by `pytest tests/unit/loading/test_safetensors_files.py`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields, read_json
from hasten.core.loading.gguf_file import map_file
from hasten.kernels.weights import DenseWeight
from ml_dtypes import bfloat16, float8_e4m3fn

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit

U8Array = npt.NDArray[np.uint8]

DTYPES: dict[str, npt.DTypeLike] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": bfloat16,
    "F8_E4M3": float8_e4m3fn,
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
}
FLOAT_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as it lies in its file: `raw` are its bytes."""

    path: Path
    key: str
    dtype: str
    shape: tuple[int, ...]
    raw: U8Array

    def array(self) -> npt.NDArray[Any]:
        """The numbers, as a view of the mapping wherever their place in the file is aligned."""
        dtype = np.dtype(DTYPES[self.dtype])
        raw = self.raw
        if raw.ctypes.data % dtype.itemsize:
            raw = raw.copy()
        return raw.view(dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class SafetensorsFiles:
    """The tensors of a checkpoint directory, over all its files. `headers` are theirs, in order."""

    where: str
    tensors: dict[str, StoredTensor]
    headers: tuple[bytes, ...]


def open_safetensors(folder: Path) -> SafetensorsFiles:
    """Map the checkpoint in `folder`. Raises LoadError naming the file that is wrong."""
    tensors: dict[str, StoredTensor] = {}
    headers = []
    files, index = _list_files(folder)
    for path in files:
        header, found = _map_tensors(path)
        headers.append(header)
        for tensor in found:
            if tensor.key in tensors:
                raise LoadError(f"{path}: tensor {tensor.key!r} is also in another file")
            tensors[tensor.key] = tensor
    for key, name in index.items():
        if key not in tensors or tensors[key].path.name != name:
            raise LoadError(f"{folder / name}: tensor {key!r} is missing, though the index has it")
    return SafetensorsFiles(str(folder), tensors, tuple(headers))


def open_safetensors_file(path: Path) -> SafetensorsFiles:
    """Map one file by itself. Raises LoadError."""
    header, tensors = _map_tensors(path)
    return SafetensorsFiles(str(path), {tensor.key: tensor for tensor in tensors}, (header,))


class SafetensorsSource:
    """A `TensorSource` over plain (not quantised) checkpoint tensors."""

    def __init__(self, files: SafetensorsFiles, ignored: frozenset[str] = frozenset()) -> None:
        self.where = files.where
        self._tensors = {key: kept for key, kept in files.tensors.items() if key not in ignored}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tensor.shape for key, tensor in self._tensors.items()}

    def local_name(self, key: str) -> str:
        return key

    def read(self, key: str) -> DenseWeight:
        tensor = self._tensors[key]
        if tensor.dtype not in FLOAT_DTYPES:
            raise LoadError(
                f"{tensor.path}: tensor {key!r} has dtype {tensor.dtype}, which is not supported "
                f"here; supported: {', '.join(FLOAT_DTYPES)}"
            )
        return DenseWeight(tensor.array())


def _list_files(folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The files to map, and which file the index says each tensor is in (empty: no index)."""
    single = folder / SINGLE_FILE
    if single.is_file():
        return [single], {}
    index_path = folder / INDEX_FILE
    if not index_path.is_file():
        raise LoadError(f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")
    weight_map = read_json(index_path).nested("weight_map").string_values()
    for name in weight_map.values():
        if PurePath(name).name != name or name in ("", ".", ".."):
            raise LoadError(f"{index_path}: {name!r} is not the name of a file beside it")
    return [folder / name for name in sorted(set(weight_map.values()))], weight_map


def _map_tensors(path: Path) -> tuple[bytes, list[StoredTensor]]:
    data = np.frombuffer(map_file(path), np.uint8)
    header = _read_header(path, data)
    body = data[8 + len(header) :]
    tensors = [
        _map_tensor(path, key, entry, body)
        for key, entry in _parse_header(path, header).items()
        if key != "__metadata__"
    ]
    _refuse_overlap(path, body, tensors)
    return header, tensors


def _read_header(path: Path, data: U8Array) -> bytes:
    if len(data) < 8:
        raise LoadError(f"{path}: truncated: {len(data)} bytes are no safetensors file")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > MAX_HEADER_BYTES:
        raise LoadError(f"{path}: not a safetensors file (a header of {length} bytes claimed)")
    if 8 + length > len(data):
        raise LoadError(f"{path}: truncated: a header of {length} bytes, the file has {len(data)}")
    return data[8 : 8 + length].tobytes()


def _parse_header(path: Path, header: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: the header is not valid JSON") from error
    if not isinstance(parsed, dict):
        raise LoadError(f"{path}: the header is not a JSON object")
    return parsed


def _map_tensor(path: Path, key: str, entry: Any, body: U8Array) -> StoredTensor:
    if not isinstance(entry, dict):
        raise LoadError(f"{path}: tensor {key!r} has no entry of the expected form")
    fields = Fields(entry, f"{path}: tensor {key!r}")
    dtype = fields.text("dtype")
    if dtype not in DTYPES:
        raise LoadError(f"{path}: tensor {key!r} has dtype {dtype!r}, which is not supported")
    shape, offsets = fields.integers("shape"), fields.integers("data_offsets")
    num_bytes = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if len(offsets) != 2 or min((*shape, *offsets)) < 0 or offsets[1] - offsets[0] != num_bytes:
        raise LoadError(f"{path}: tensor {key!r} has offsets that do not fit shape {list(shape)}")
    if offsets[1] > len(body):
        raise LoadError(
            f"{path}: truncated: tensor {key!r} ends at byte {offsets[1]} of the data, "
            f"the file has {len(body)}"
        )
    return StoredTensor(path, key, dtype, shape, body[offsets[0] : offsets[1]])


def _refuse_overlap(path: Path, body: U8Array, tensors: list[StoredTensor]) -> None:
    """The format lays tensors end to end: anything else means that the header is damaged."""
    base = body.ctypes.data
    free_from = 0
    for tensor in sorted(tensors, key=lambda stored: (stored.raw.ctypes.data, stored.raw.size)):
        start = tensor.raw.ctypes.data - base if tensor.raw.size else free_from
        if start < free_from:
            raise LoadError(f"{path}: damaged: tensor {tensor.key!r} overlaps another")
        free_from = start + tensor.raw.size
