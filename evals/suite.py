"""Suites: what is measured and how much harm is accepted, as TOML.

`quick`, `standard` and `full` ship with the package; any other name is a path to a file of one's
own. A key or measure that does not exist is an error. Exercised by
`pytest tests/unit/evals/test_suite.py`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from hasten.evals.blocks import Block
from hasten.evals.canonical import content_hash
from hasten.evals.gate import Gate

SHIPPED = Path(__file__).parent / "suites"


class SuiteError(ValueError):
    """A suite cannot be read; the message names the file and the key."""


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blocks in the order in which they are observed, and the levels of the gate's tests."""

    name: str
    description: str
    alpha: float = 0.05
    power: float = 0.9
    blocks: list[Block]

    def __post_init__(self) -> None:
        if not (0.0 < self.alpha < 0.5 and 0.5 < self.power < 1.0):
            raise ValueError("alpha must be in (0, 0.5) and power in (0.5, 1)")
        names = [block.name for block in self.blocks]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"block names must differ: {', '.join(sorted(twice))}")

    @property
    def hash(self) -> str:
        return content_hash(self)

    @property
    def gate(self) -> Gate:
        return Gate(self.alpha, self.power)


def load_suite(reference: str) -> Suite:
    """The suite called `reference`, or in the file of that path. Raises SuiteError."""
    shipped = SHIPPED / f"{reference}.toml"
    path = shipped if shipped.is_file() else Path(reference)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SuiteError(
            f"no suite {reference!r}: not a file, and not one of {', '.join(shipped_suites())}"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SuiteError(f"{path}: {error}") from error
    try:
        return msgspec.convert(data, Suite)
    except msgspec.ValidationError as error:
        raise SuiteError(f"{path}: {error}") from error


def shipped_suites() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))
