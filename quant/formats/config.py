"""Reading `quantization_config` so that nothing in it is overlooked.

A key is taken with its type, declared to be information only, or refused: `finish` raises for
whatever is left. Exercised by `pytest tests/unit/quant`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from hasten.quant.formats.base import FormatError

T = TypeVar("T")

MISSING = object()


class ConfigReader:
    """A mapping whose keys must all be accounted for. `where` is its path in messages."""

    def __init__(self, values: Mapping[str, Any], where: str = "quantization_config") -> None:
        self._values = values
        self._where = where
        self._seen: set[str] = set()

    def error(self, name: str, problem: str) -> FormatError:
        return FormatError(f"{self._where}.{name}: {problem}")

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The value of `name`, of type `kind`; absent or null gives `default` if there is one."""
        self._seen.add(name)
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "is missing")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.error(name, f"must be {kind.__name__}, got {value!r}")
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """As `take`, None when absent or null."""
        self._seen.add(name)
        return None if self._values.get(name) is None else self.take(name, kind)

    def choose(self, name: str, allowed: tuple[Any, ...], default: Any = MISSING) -> Any:
        """The value of `name`, which must be one of `allowed`; absent gives `default`."""
        self._seen.add(name)
        value = self._values.get(name, default)
        if value is MISSING:
            raise self.error(name, "is missing")
        if not any(
            value is each or (value == each and type(value) is type(each)) for each in allowed
        ):
            shown = ", ".join(map(repr, allowed))
            raise self.error(name, f"{value!r} is not supported; supported: {shown}")
        return value

    def nested(self, name: str) -> ConfigReader | None:
        """A reader of the object under `name`, None when absent or null."""
        values = self.optional(name, dict)
        return None if values is None else ConfigReader(values, f"{self._where}.{name}")

    def names(self) -> tuple[str, ...]:
        """All keys, for objects whose keys are names (patterns, groups)."""
        return tuple(self._values)

    def ignore(self, *names: str) -> None:
        """Account for keys that only inform (who wrote it, how it was calibrated)."""
        self._seen.update(names)

    def finish(self) -> None:
        """Raise FormatError for the first key that nobody has accounted for."""
        for name in self._values:
            if name not in self._seen:
                near = difflib.get_close_matches(name, self._seen, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise self.error(name, f"is not known{hint}")
