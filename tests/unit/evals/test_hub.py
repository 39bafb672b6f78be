from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hasten.evals import hub
from hasten.evals.rows import DataError, DataFolder, MathRow, TextRow

REFERENCE = "datasets:openai/gsm8k@main:test"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    hub.load_rows.cache_clear()


def give(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A package `datasets` that holds these rows; returns what it is asked for."""
    asked: list[tuple[Any, ...]] = []
    package = ModuleType("datasets")

    def load_dataset(name: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        if name == "nowhere":
            raise ConnectionError("no network")
        return list(rows)

    package.load_dataset = load_dataset  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "datasets", package)
    return asked


def test_rows_of_a_data_set_are_read_and_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = give(monkeypatch, {"question": "1 + 1?", "answer": "#### 2", "more": 3})
    data = DataFolder()
    assert data.rows(REFERENCE, MathRow) == [MathRow("1 + 1?", "#### 2")]
    assert data.hashes[REFERENCE] == data.fingerprint(REFERENCE)
    assert asked == [("openai/gsm8k", "main", "test")]


def test_texts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, {"text": "One.\n"}, {"text": "Two."})
    assert DataFolder().texts("datasets:wiki:test") == [("datasets:wiki:test", "One.\nTwo.")]
    assert DataFolder().rows("datasets:wiki:test", TextRow, 1) == [TextRow("One.\n")]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (REFERENCE, r"gsm8k@main:test:1: .*`question`"),
        ("datasets:nowhere:test", "ConnectionError: no network"),
        ("datasets:gsm8k", r"is not datasets:NAME\[@CONFIG\]:SPLIT"),
    ],
)
def test_what_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    give(monkeypatch, {"query": "another shape"})
    with pytest.raises(DataError, match=message):
        DataFolder().rows(reference, MathRow)


def test_without_the_package_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package `datasets`.*pip install datasets"):
        DataFolder().fingerprint(REFERENCE)
