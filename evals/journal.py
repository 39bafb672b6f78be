"""An append-only file of answers by key, which survives being interrupted at any byte.

    frame: key length u32 | value length u32 | SHA-256 of key and value | key | value

A torn last frame (the process died while writing) is cut off when the file is opened again; a
damaged frame elsewhere is an error. Exercised by `pytest tests/unit/evals/test_journal.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

_LENGTHS = struct.Struct("<II")
_DIGEST_BYTES = 32


class JournalError(RuntimeError):
    """The file is damaged, or cannot be written; the message names it."""


class Journal:
    """Values by key. Opening reads the whole file; one process at a time writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[bytes, bytes] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise JournalError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._lock()
            self._load()
        except JournalError:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Append; on disk when it returns. Raises JournalError (a full disk, say)."""
        frame = _LENGTHS.pack(len(key), len(value)) + _digest(key, value) + key + value
        try:
            written = self._file.write(frame)
            shortage = "No space left on device"
        except OSError as error:
            written, shortage = None, error.strerror or str(error)
        if written != len(frame):
            # Half a frame would make the next one unreadable.
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise JournalError(f"{self.path}: cannot be written: {shortage}")
        self._size += len(frame)
        self._values[key] = value

    def close(self) -> None:
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise JournalError(f"{self.path}: another run is writing to it") from error

    def _load(self) -> None:
        self._file.seek(0)
        data = self._file.readall()
        self._size = 0
        for key, value, frame_end in _frames(data, self.path):
            self._values[key] = value
            self._size = frame_end
        if self._size < len(data):
            self._file.truncate(self._size)


def _frames(data: bytes, path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """Whole frames and where each ends; stops at a torn one. Raises JournalError on damage."""
    start = 0
    while start + _LENGTHS.size + _DIGEST_BYTES <= len(data):
        key_len, value_len = _LENGTHS.unpack_from(data, start)
        body = start + _LENGTHS.size + _DIGEST_BYTES
        end = body + key_len + value_len
        if end > len(data):
            return
        key, value = data[body : body + key_len], data[body + key_len : end]
        if data[start + _LENGTHS.size : body] != _digest(key, value):
            if end == len(data):
                return
            raise JournalError(f"{path}: the frame at byte {start} is damaged")
        yield key, value, end
        start = end


def _digest(key: bytes, value: bytes) -> bytes:
    return hashlib.sha256(_LENGTHS.pack(len(key), len(value)) + key + value).digest()
