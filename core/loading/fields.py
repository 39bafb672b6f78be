"""Reading untyped key-value data (JSON, GGUF metadata) with types and ranges, never by guess.

Exercised by `pytest tests/unit/loading/test_fields.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hasten.core.loading.errors import LoadError

MAX_JSON_BYTES = 256 << 20


class Fields:
    """A view of a mapping whose getters check what they return.

    `where` names the file in messages. A field that is absent or null is "missing". Every getter
    raises LoadError naming the file and the field.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self.where = where
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def error(self, name: str, problem: str) -> LoadError:
        """An error about one field, for the caller to raise."""
        return LoadError(f"{self.where}: field {self._prefix + name!r} {problem}")

    def raw(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            raise self.error(name, "is missing")
        return value

    def integer(self, name: str, minimum: int = 1, maximum: int = 2**53) -> int:
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be an integer, got {_show(value)}")
        if not minimum <= value <= maximum:
            raise self.error(name, f"must be from {minimum} to {maximum}, got {_show(value)}")
        return value

    def number(self, name: str, above: float = 0.0) -> float:
        """A finite number greater than `above`."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"must be a number, got {_show(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number > above):
            raise self.error(name, f"must be a number above {above}, got {_show(value)}")
        return number

    def boolean(self, name: str) -> bool:
        value = self.raw(name)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, got {_show(value)}")
        return value

    def text(self, name: str) -> str:
        value = self.raw(name)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, got {_show(value)}")
        return value

    def strings(self, name: str) -> list[str]:
        value = self.raw(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "must be a list of strings")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers, or one integer as a list of itself."""
        value = self.raw(name)
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.error(name, f"must be an integer or a list of them, got {_show(value)}")
        return tuple(items)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of finite numbers above 0."""
        value = self.raw(name)
        if not isinstance(value, list):
            raise self.error(name, f"must be a list of numbers, got {_show(value)}")
        prefix = f"{self._prefix}{name}."
        items = Fields({str(idx): item for idx, item in enumerate(value)}, self.where, prefix)
        return tuple(items.number(str(idx)) for idx in range(len(value)))

    def string_values(self) -> dict[str, str]:
        """All of the mapping, whose every value must be a string."""
        for name in self._values:
            self.text(name)
        return dict(self._values)

    def nested(self, name: str) -> Fields:
        value = self.raw(name)
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, got {_show(value)}")
        return Fields(value, self.where, f"{self._prefix}{name}.")

    def refuse_unless(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Raise LoadError when the field is there and holds a value that is not supported."""
        if name in self and self.raw(name) not in allowed:
            shown = ", ".join(_show(value) for value in allowed)
            raise self.error(
                name, f"is {_show(self.raw(name))}, which is not supported; supported: {shown}"
            )

    def refuse_others(self, known: Collection[str]) -> None:
        """Raise LoadError when there is a field that is not `known`."""
        for name in self._values:
            if name in self and name not in known:
                raise self.error(name, "is not supported")


def read_json(path: Path) -> Fields:
    """The object in a JSON file. Raises LoadError when it cannot be read or is no object."""
    return Fields(read_json_object(path), str(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """As `read_json`, without the checked view."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LoadError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not valid JSON: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path}: holds {type(value).__name__}, not a JSON object")
    return value


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _show(value: Any) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
