"""One way to write a value as JSON, so that equal values have equal hashes.

Exercised by `pytest tests/unit/evals/test_records.py`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, no NaN."""
    return msgspec.json.encode(value, order="sorted")


def content_hash(value: Any) -> str:
    """Hexadecimal SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
