"""The GGUF container: metadata and tensor directory of a memory-mapped file.

Reads versions 2 and 3, little-endian. Every length is checked against what is left of the file
before it is believed, so a truncated or damaged file gives one `LoadError` and costs neither time
nor memory; the arrays of a vocabulary are read in one pass (about 0.05 s for 50,000 tokens).
Source: the GGUF format specification in the ggml repository (docs/gguf.md).
Exercised by `pytest tests/unit/loading/test_gguf_file.py`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.core.loading.errors import LoadError
from hasten.quant.ggml_types import GGMLType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    U8Array = npt.NDArray[np.uint8]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_ELEMENTS = 2**48

# Value types 0 to 12 of the specification, as `struct` calls them: 8 is a string, 9 an array.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of `data`: `shape` counts its numbers, outputs first."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]
    data: memoryview

    @property
    def raw(self) -> U8Array:
        """Its bytes, [rows, bytes per row]: a view of the mapping."""
        # Here and not above: what reads only vocabularies needs no numpy.
        import numpy as np

        return np.frombuffer(self.data, np.uint8).reshape(math.prod(self.shape[:-1]), -1)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An open file. `metadata` values are int, float, bool, str or lists of them.

    `header` is everything before the tensor data; `tensors` view the mapping, which lives as long
    as any of them.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    header: bytes


def open_gguf(path: Path) -> GGUFFile:
    """Map `path` and read its directory. Raises LoadError."""
    data = map_file(path)
    cursor = _Cursor(path, data)
    num_tensors, num_values = _read_preamble(cursor)
    metadata = _read_metadata(cursor, num_values)
    entries = [_read_tensor_info(cursor) for _ in range(cursor.count(num_tensors, 24, "tensors"))]
    alignment = _alignment(path, metadata)
    data_start = -(-cursor.at // alignment) * alignment
    header = bytes(data[: cursor.at])
    return GGUFFile(path, metadata, _map_tensors(path, data, entries, data_start), header)


def map_file(path: Path) -> memoryview:
    """The bytes of a file, copy-on-write, so that views are writable without touching it."""
    try:
        if path.stat().st_size == 0:
            raise LoadError(f"{path}: the file is empty")
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error


class _Cursor:
    """A reading position that never passes the end of the file."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.at = 0
        self._view = data

    def error(self, problem: str) -> LoadError:
        return LoadError(f"{self.path}: {problem}, at byte {self.at}")

    def take(self, num_bytes: int) -> memoryview:
        end = self.at + num_bytes
        if end > len(self._view):
            raise self.error(f"truncated: {num_bytes} more bytes expected")
        taken = self._view[self.at : end]
        self.at = end
        return taken

    def count(self, claimed: int, min_bytes_each: int, what: str) -> int:
        """`claimed`, once the rest of the file is seen to be able to hold so many."""
        if claimed * min_bytes_each > len(self._view) - self.at:
            raise self.error(f"truncated or damaged: {claimed} {what} claimed")
        return claimed

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        # One tight loop with local names: a vocabulary has a hundred thousand of them.
        view, at, size = self._view, self.at, len(self._view)
        length_at = struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(view, at)[0]
                if at > size:
                    raise self.error("truncated or damaged: a string passes the end of the file")
                found.append(str(view[start:at], "utf-8"))
        except struct.error as error:
            raise self.error("truncated: a string expected") from error
        except UnicodeDecodeError as error:
            raise self.error("a string is not UTF-8") from error
        self.at = at
        return found

    def value(self) -> Any:
        value_type = self.u32()
        if value_type == _ARRAY:
            return self._array()
        if value_type == _STRING:
            return self.string()
        return self._numbers(value_type, 1)[0]

    def _array(self) -> list[Any]:
        item_type, length = self.u32(), self.u64()
        if item_type == _STRING:
            return self.strings(self.count(length, 8, "strings"))
        return self._numbers(item_type, self.count(length, 1, "array items"))

    def _numbers(self, value_type: int, count: int) -> list[Any]:
        if value_type not in _SCALARS:
            raise self.error(f"unknown metadata value type {value_type}")
        numbers = struct.Struct(f"<{count}{_SCALARS[value_type]}")
        return list(numbers.unpack(self.take(numbers.size)))


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    if bytes(cursor.take(4)) != MAGIC:
        raise LoadError(f"{cursor.path}: not a GGUF file (its first four bytes are not 'GGUF')")
    version = cursor.u32()
    if version not in VERSIONS:
        hint = " (a big-endian file)" if version & 0xFFFF == 0 and version else ""
        raise LoadError(f"{cursor.path}: GGUF version {version}{hint} is not supported; 2, 3 are")
    return cursor.u64(), cursor.u64()


def _read_metadata(cursor: _Cursor, num_values: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count(num_values, 13, "metadata values")):
        key = cursor.string()
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} occurs twice")
        metadata[key] = cursor.value()
    return metadata


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    type: GGMLType
    shape: tuple[int, ...]
    offset: int


def _read_tensor_info(cursor: _Cursor) -> _TensorInfo:
    name = cursor.string()
    num_dims = cursor.u32()
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(f"tensor {name!r} has {num_dims} dimensions")
    # The file lists the fastest-running dimension (the inputs of a matrix) first.
    shape = tuple(cursor.u64() for _ in range(num_dims))[::-1]
    if not 0 < math.prod(shape) <= MAX_ELEMENTS:
        raise cursor.error(f"tensor {name!r} has shape {shape}")
    type_id = cursor.u32()
    try:
        tensor_type = GGMLType(type_id)
    except ValueError as error:
        raise cursor.error(f"tensor {name!r} has unknown type {type_id}") from error
    return _TensorInfo(name, tensor_type, shape, cursor.u64())


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise LoadError(f"{path}: field 'general.alignment' must be a power of two")
    return alignment


def _map_tensors(
    path: Path, data: memoryview, entries: list[_TensorInfo], data_start: int
) -> dict[str, GGUFTensor]:
    """The tensors by name. They may neither overlap nor pass the end of the file."""
    tensors: dict[str, GGUFTensor] = {}
    free_from = data_start
    for info in sorted(entries, key=lambda entry: entry.offset):
        row_bytes = _row_bytes(path, info)
        start = data_start + info.offset
        end = start + math.prod(info.shape[:-1]) * row_bytes
        if end > len(data):
            raise LoadError(
                f"{path}: truncated: tensor {info.name!r} ends at byte {end}, "
                f"the file at {len(data)}"
            )
        if start < free_from:
            raise LoadError(f"{path}: damaged: tensor {info.name!r} overlaps another")
        if info.name in tensors:
            raise LoadError(f"{path}: tensor {info.name!r} occurs twice")
        free_from = end
        tensors[info.name] = GGUFTensor(info.name, info.type, info.shape, data[start:end])
    return tensors


def _row_bytes(path: Path, info: _TensorInfo) -> int:
    block_len, block_bytes = info.type.block_len, info.type.block_bytes
    if info.shape[-1] % block_len:
        raise LoadError(
            f"{path}: tensor {info.name!r}: rows of {info.shape[-1]} are no multiple of the "
            f"{block_len} values in a {info.type.name} block"
        )
    return int(info.shape[-1] // block_len * block_bytes)
