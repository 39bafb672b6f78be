"""Reading fields: types and ranges are checked, and the message names file and field."""

from __future__ import annotations

from typing import Any

import pytest
from hasten.core.loading import LoadError
from hasten.core.loading.fields import Fields


def fields(value: Any) -> Fields:
    return Fields({"x": value}, "file")


def test_what_is_right_comes_back() -> None:
    assert fields(3).integer("x") == 3
    assert fields(3).number("x") == 3.0
    assert fields(False).boolean("x") is False
    assert fields("a").text("x") == "a"
    assert fields(["a"]).strings("x") == ["a"]
    assert fields(3).integers("x") == fields([3]).integers("x") == (3,)
    assert fields({"y": 1}).nested("x").integer("y") == 1
    assert Fields({"a": "b"}, "file").string_values() == {"a": "b"}
    assert "x" in fields(0)
    assert "x" not in fields(None)


@pytest.mark.parametrize(
    ("getter", "value"),
    [
        ("integer", None),
        ("integer", True),
        ("integer", 3.0),
        ("integer", 0),
        ("integer", 2**60),
        ("number", "1"),
        ("number", float("inf")),
        ("number", 10**400),
        ("number", 0),
        ("boolean", 1),
        ("text", 1),
        ("strings", ["a", 1]),
        ("integers", [True]),
        ("integers", "1"),
        ("nested", []),
    ],
)
def test_what_is_wrong_is_named(getter: str, value: Any) -> None:
    with pytest.raises(LoadError, match=r"^file: field 'x' ") as caught:
        getattr(fields(value), getter)("x")
    assert "\n" not in str(caught.value)


def test_a_nested_field_is_named_with_its_path() -> None:
    with pytest.raises(LoadError, match=r"field 'x\.y' is missing"):
        fields({}).nested("x").integer("y")


def test_long_values_are_shortened() -> None:
    with pytest.raises(LoadError) as caught:
        fields("a" * 1000).integer("x")
    assert len(str(caught.value)) < 150


def test_only_supported_values_pass() -> None:
    fields(None).refuse_unless("x", ("a",))
    fields("a").refuse_unless("x", ("a", "b"))
    with pytest.raises(LoadError, match='\'x\' is "c", which is not supported; supported: "a"'):
        fields("c").refuse_unless("x", ("a",))
