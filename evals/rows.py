"""Data from files: found, hashed, and read strictly.

External sets are never shipped: they are read from a folder that the user names, or by the package
`datasets` (see `hub`). A bad row is an error with file and line. Exercised by
`pytest tests/unit/evals/test_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hasten.evals import hub
from hasten.evals.canonical import content_hash
from hasten.evals.configuration import file_hash

T = TypeVar("T")

PACKAGED = Path(__file__).parent / "data"
PACKAGED_PREFIX = "hasten:"
"""Marks what this project wrote and ships: "hasten:text", "hasten:prompts.jsonl"."""
FACTS = "hasten:facts.toml"
"""The shipped relations, from which multiple-choice items are made."""


class DataError(ValueError):
    """Data is missing or wrong; the message names the file, and the line where there is one."""


class ChoiceRow(msgspec.Struct, frozen=True):
    """A question with choices, of which number `gold` is right."""

    query: str
    choices: list[str]
    gold: int


class ContinuationRow(msgspec.Struct, frozen=True):
    """A text and how it goes on."""

    context: str
    continuation: str


class TextRow(msgspec.Struct, frozen=True):
    """A piece of a longer text."""

    text: str


class PromptRow(msgspec.Struct, frozen=True):
    """A conversation that wants an answer."""

    id: str
    messages: list[dict[str, str]]


class MathRow(msgspec.Struct, frozen=True):
    """A word problem; the answer ends in "#### number"."""

    question: str
    answer: str


class InstructionRow(msgspec.Struct, frozen=True):
    """A prompt with instructions that a program can check."""

    key: int
    prompt: str
    instruction_id_list: list[str]
    kwargs: list[dict[str, object]]


class ProgramRow(msgspec.Struct, frozen=True):
    """The head of a Python function, and a test of the whole."""

    task_id: str
    prompt: str
    test: str
    entry_point: str


@dataclass(slots=True)
class DataFolder:
    """Resolves the names in suites, and notes the hash of every file that was read."""

    root: Path | None = None
    hashes: dict[str, str] = field(default_factory=dict)

    def resolve(self, name: str) -> Path:
        """The file or folder called `name`. Raises DataError when it is not there."""
        if name.startswith(PACKAGED_PREFIX):
            return PACKAGED / name.removeprefix(PACKAGED_PREFIX)
        path = Path(name)
        if not path.is_absolute():
            if self.root is None:
                raise DataError(f"{name}: no data folder is set; give one with --data")
            path = self.root / name
        if not path.exists():
            raise DataError(f"{path}: no such file")
        return path

    def texts(self, name: str) -> list[tuple[str, str]]:
        """(name, text) of a text file, or of every .txt file of a folder, in name order.

        Of a data set, the column `text` of all rows, joined.
        """
        if name.startswith(hub.PREFIX):
            return [(name, "".join(row.text for row in self.rows(name, TextRow)))]
        path = self.resolve(name)
        files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"{path}: holds no .txt file")
        return [(file.stem, self._read(file, f"{name}/{file.name}")) for file in files]

    def rows(self, name: str, of_type: type[T], limit: int | None = None) -> list[T]:
        """The first `limit` rows of a .jsonl file, or of a data set."""
        read = self._hub_rows if name.startswith(hub.PREFIX) else self._file_rows
        rows = list(read(name, of_type, limit))
        if not rows:
            raise DataError(f"{name}: holds no row")
        return rows

    def fingerprint(self, name: str) -> str:
        """A hash of what `name` holds now; notes the hash of each file."""
        if name.startswith(hub.PREFIX):
            return self._hub(name).hash
        path = self.resolve(name)
        if path.is_dir():
            return content_hash(
                [self._hash(f, f"{name}/{f.name}") for f in sorted(path.glob("*.txt"))]
            )
        return self._hash(path, name)

    def _file_rows(self, name: str, of_type: type[T], limit: int | None) -> Iterator[T]:
        path = self.resolve(name)
        for number, line in enumerate(self._read(path, name).splitlines()[:limit], start=1):
            if line.strip():
                yield _checked(msgspec.json.decode, line, of_type, f"{path}:{number}")

    def _hub_rows(self, name: str, of_type: type[T], limit: int | None) -> Iterator[T]:
        for number, row in enumerate(self._hub(name).rows[:limit], start=1):
            yield _checked(msgspec.convert, row, of_type, f"{name}:{number}")

    def _hub(self, name: str) -> hub.HubRows:
        try:
            found = hub.load_rows(name)
        except hub.HubError as error:
            raise DataError(str(error)) from error
        self.hashes[name] = found.hash
        return found

    def _hash(self, path: Path, name: str) -> str:
        self.hashes[name] = file_hash(path)
        return self.hashes[name]

    def _read(self, path: Path, name: str) -> str:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 at byte {error.start}") from error
        self._hash(path, name)
        return text


def _checked(convert: Callable[..., Any], raw: Any, of_type: type[T], where: str) -> T:
    """What `convert` makes of a raw row. Raises DataError naming where it stands."""
    try:
        row: T = convert(raw, type=of_type)
    except msgspec.MsgspecError as error:
        raise DataError(f"{where}: {error}") from error
    if isinstance(row, ChoiceRow) and not 0 <= row.gold < len(row.choices):
        raise DataError(f"{where}: gold is {row.gold}, there are {len(row.choices)} choices")
    return row
