"""Packed matrices kept on disk, so that the next start need not pack them again.

A file belongs to one set of weights, one instruction set and one layout. Its name holds both of
the latter: the layout is named by a hash of what packing makes of a few fixed matrices, so that it
cannot go stale when the kernels change.

    b"HASTENPK" | bytes of the header, u64 | header, JSON, padded to 64 | matrices, padded to 64

Matrices are read into huge pages, not mapped: through the 4 KiB pages of a mapped file the kernels
get a third less of the memory's bandwidth. Whatever is wrong with a file or the disk costs time
and a line in the log, nothing else. Exercised by `pytest tests/cpu/native/test_packed_file.py`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from hasten.kernels.cpu.packing import PackedMatrix, WeightFormat, pack
from hasten.kernels.weights import DenseWeight, Fp8Weight, GroupedIntWeight
from ml_dtypes import float8_e4m3fn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from hasten.kernels.cpu._native import Arena

logger = logging.getLogger(__name__)

MAGIC = b"HASTENPK"
ALIGNMENT = 64
SUFFIX = ".packed"
PREFIX_BYTES = len(MAGIC) + 8
MAX_HEADER_BYTES = 1 << 28
MIN_KEPT_BYTES = 16 << 20
"""Less is packed sooner than it is looked up."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A matrix in the file: its form, and its bytes, from `start` after the header on."""

    format: int
    scale_type: int
    rows: int
    width: int
    scale_groups: int
    start: int
    num_bytes: int
    checksum: int

    def read(self, file: BufferedReader, begin: int, arena: Arena) -> PackedMatrix:
        """Raises ValueError when the bytes are not those that were written."""
        from hasten.kernels.cpu import _native

        form = WeightFormat(self.format)
        shape = (self.scale_type, self.rows, self.width)
        if self.num_bytes != _native.packed_bytes(form, *shape, self.scale_groups):
            raise ValueError("a matrix has another size")
        data = arena.take(self.num_bytes)
        file.seek(begin + self.start)
        if file.readinto(data.data) != self.num_bytes:
            raise ValueError("the file ends early")
        if _checksum(data) != self.checksum:
            raise ValueError("the bytes are not those that were written")
        return PackedMatrix(form, *shape, data, self.scale_groups)


class PackedFile:
    """The matrices of one set of weights: those on disk, and those packed since."""

    def __init__(self, folder: Path, isa: str) -> None:
        self._isa = isa
        self.path = folder / f"{isa}-{_layout_key()}{SUFFIX}"
        self._begin, self._entries = _read_header(self.path)
        self._added: dict[str, PackedMatrix] = {}

    def take(self, key: str, arena: Arena) -> PackedMatrix | None:
        """The matrix in memory of `arena`; None if it must be packed."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        try:
            with self.path.open("rb") as file:
                return entry.read(file, self._begin, arena)
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s: %s; it is made again", self.path, error)
            del self._entries[key]
            return None

    def add(self, key: str, matrix: PackedMatrix) -> None:
        """Keep a matrix at the next `save`."""
        self._added[key] = matrix

    def save(self) -> None:
        """Write all matrices, if many are not on disk yet; removes files of other layouts."""
        if sum(matrix.data.nbytes for matrix in self._added.values()) < MIN_KEPT_BYTES:
            return
        from hasten.kernels.cpu import _native

        arena = _native.Arena()
        kept = {key: self.take(key, arena) for key in list(self._entries)}
        matrices = {key: matrix for key, matrix in kept.items() if matrix is not None}
        if _write(self.path, matrices | self._added):
            self._remove_stale()
        self._added = {}

    def _remove_stale(self) -> None:
        for other in self.path.parent.glob(f"{self._isa}-*{SUFFIX}"):
            if other != self.path:
                other.unlink(missing_ok=True)


def _layout_key() -> str:
    """Sixteen digits that change whenever packing puts any byte elsewhere."""
    from hasten.kernels.cpu import _native

    arena = _native.Arena()
    rng = np.random.default_rng(0)
    quants = rng.integers(0, 256, (64, 64), np.uint8)
    scales = rng.standard_normal((64, 2))
    dense = DenseWeight(rng.standard_normal((33, 70)).astype(np.float32))
    packed = [pack(dense, target, arena) for target in (WeightFormat.BF16, WeightFormat.F32)]
    for dtype in (np.float16, np.float32):
        scale = scales.astype(dtype)
        int4 = GroupedIntWeight(4, 32, quants[:, :32], scale, scale)
        int8 = GroupedIntWeight(8, 32, quants.view(np.int8), scale, None)
        shifted = GroupedIntWeight(8, 32, quants.view(np.int8), scale, scale)
        packed += [
            pack(int4, WeightFormat.INT4, arena),
            pack(int8, WeightFormat.INT8, arena),
            pack(shifted, WeightFormat.INT8_OFFSET, arena),
        ]
    half, wide = scales.astype(np.float16), scales.astype(np.float32)
    mixed = GroupedIntWeight(4, 32, quants[:, :32], half, wide)
    packed.append(pack(mixed, WeightFormat.INT4, arena))
    fp8 = Fp8Weight(quants.view(float8_e4m3fn), wide, (1, 32))
    packed.append(pack(fp8, WeightFormat.FP8, arena))
    digest = hashlib.sha256()
    for matrix in packed:
        digest.update(f"{int(matrix.format)} {matrix.rows} {matrix.width}".encode())
        digest.update(matrix.data.data)
    return digest.hexdigest()[:16]


def _checksum(data: npt.NDArray[np.uint8]) -> int:
    """The sum of the 64-bit words, modulo 2^64: as fast as memory, and damage is no adversary."""
    whole = len(data) // 8 * 8
    words = data[:whole].view(np.uint64)
    return (int(words.sum(dtype=np.uint64)) + int(data[whole:].sum())) % 2**64


def _read_header(path: Path) -> tuple[int, dict[str, _Entry]]:
    """Where the matrices begin, and the entries: none where there is no file that can be used."""
    try:
        with path.open("rb") as file:
            return _parse_header(file)
    except FileNotFoundError:
        return 0, {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be used (%s); it is made again", path, error)
        return 0, {}


def _parse_header(file: BufferedReader) -> tuple[int, dict[str, _Entry]]:
    """Raises ValueError, TypeError or AttributeError when it is none of ours."""
    start = file.read(PREFIX_BYTES)
    num_bytes = int.from_bytes(start[len(MAGIC) :], "little")
    if not start.startswith(MAGIC) or num_bytes > MAX_HEADER_BYTES:
        raise ValueError("it holds no packed weights")
    entries = json.loads(file.read(num_bytes))
    return PREFIX_BYTES + num_bytes, {key: _Entry(*entry) for key, entry in entries.items()}


def _write(path: Path, matrices: dict[str, PackedMatrix]) -> bool:
    """Write a file whole or not at all; says whether it did, and logs why not."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.writelines(_pieces(matrices))
        temporary.replace(path)
    except OSError as error:
        logger.warning("packed weights are not kept at %s: %s", path, error.strerror or error)
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        return False
    return True


def _pieces(matrices: dict[str, PackedMatrix]) -> Iterator[bytes | memoryview]:
    entries: dict[str, tuple[int, ...]] = {}
    start = 0
    for key, matrix in matrices.items():
        form = (int(matrix.format), matrix.scale_type, matrix.rows, matrix.width)
        entries[key] = (
            *form,
            matrix.scale_groups,
            start,
            matrix.data.nbytes,
            _checksum(matrix.data),
        )
        start += _aligned(matrix.data.nbytes)
    header = json.dumps(entries).encode()
    padded = header.ljust(_aligned(PREFIX_BYTES + len(header)) - PREFIX_BYTES)
    yield MAGIC + len(padded).to_bytes(8, "little") + padded
    for matrix in matrices.values():
        yield matrix.data.data
        yield bytes(_aligned(matrix.data.nbytes) - matrix.data.nbytes)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
