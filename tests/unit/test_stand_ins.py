"""What stands in for msgspec makes the engine's messages as msgspec does."""

from __future__ import annotations

import dataclasses

import pytest

from tests.gpu.stand_ins import Struct


class Point(Struct, frozen=True, kw_only=True, tag="point", gc=False):
    x: int
    names: list[str] = []  # noqa: RUF012 (as in msgspec's structs)
    weights: dict[int, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


class Line(Struct, array_like=True):
    start: int
    stop: int = 3


def test_fields_defaults_and_checks() -> None:
    point = Point(x=2)
    assert point == Point(x=2, names=[], weights={})
    assert point.names is not Point(x=2).names
    assert dataclasses.replace(point, x=5).x == 5
    with pytest.raises(ValueError, match="x is negative"):
        Point(x=-1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 3  # type: ignore[misc]  # which is what is tested


def test_positional_fields() -> None:
    line = Line(1)
    line.start = 2
    assert (line.start, line.stop) == (2, 3)
