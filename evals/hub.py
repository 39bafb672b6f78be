"""Rows of data sets that the package `datasets` reads: "datasets:NAME[@CONFIG]:SPLIT".

    source = "datasets:openai/gsm8k@main:test"

Only sets whose columns are those of the row asked for (`rows`) can be used; others are an error
that names the column. Nothing is shipped, and the package is optional. Exercised by
`pytest tests/unit/evals/test_hub.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from hasten.evals.canonical import content_hash

PREFIX = "datasets:"
_REFERENCE = re.compile(r"datasets:(?P<name>[^@:]+)(?:@(?P<config>[^:]+))?:(?P<split>[^:]+)")


class HubError(ValueError):
    """A data set cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class HubRows:
    """The rows of one split, and the SHA-256 of their canonical JSON."""

    rows: list[dict[str, Any]]
    hash: str


@cache
def load_rows(reference: str) -> HubRows:
    """All rows of the split that `reference` names. Raises HubError."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise HubError(f"{reference!r} is not datasets:NAME[@CONFIG]:SPLIT")
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise HubError(
            f"{reference}: needs the package `datasets`, which is not installed: "
            "pip install datasets, or name a file in --data"
        ) from error
    try:
        split = load_dataset(found["name"], found["config"], split=found["split"])
        rows = [dict(row) for row in split]
    except Exception as error:
        # The package passes on whatever its readers and the network raise.
        raise HubError(f"{reference}: {type(error).__name__}: {error}") from error
    return HubRows(rows, content_hash(rows))
