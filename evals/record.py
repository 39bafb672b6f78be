"""Records: what was measured, of which two configurations, with what verdict.

One JSON file with a versioned schema. Its content hash covers everything but itself and the
signature, so a changed record does not load; an optional key signs the hash, so that a record
cannot be made up either. Exercised by `pytest tests/unit/evals/test_records.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks import BlockResult
from hasten.evals.canonical import canonical_json
from hasten.evals.configuration import Configuration
from hasten.evals.gate import Judgement, Verdict
from hasten.evals.suite import Suite

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "hasten.evals.record/1"


def now() -> str:
    """The time for `Record.created`, fine enough that two runs of one process sort as they ran."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class RecordError(ValueError):
    """A record cannot be read or is not what it claims; the message names the file."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one block saw, or why it saw nothing. `recalled`: taken from an earlier run."""

    name: str
    result: BlockResult | None = None
    error: str = ""
    seconds: float = 0.0
    recalled: bool = False


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `created` is UTC, ISO 8601; `data` maps names of files to their SHA-256."""

    schema: str = SCHEMA
    created: str
    suite: Suite
    baseline: Configuration
    candidate: Configuration
    data: dict[str, str]
    blocks: list[Measured]
    judgements: list[Judgement]
    verdict: Verdict
    content_hash: str = ""
    signature: str = ""

    @property
    def record_id(self) -> str:
        """What people call it: the first digits of its hash."""
        return self.content_hash[:12]

    def sealed(self, key: bytes | None = None) -> Record:
        """The same with its hash, and signed if there is a key."""
        content = self._compute_hash()
        signature = "" if key is None else _sign(content, key)
        return msgspec.structs.replace(self, content_hash=content, signature=signature)

    def check(self, key: bytes | None = None) -> None:
        """Raises RecordError when the contents or the signature do not fit."""
        if self._compute_hash() != self.content_hash:
            raise RecordError("the contents do not match the content hash: it was changed")
        if key is not None and not hmac.compare_digest(
            self.signature, _sign(self.content_hash, key)
        ):
            raise RecordError("the signature is missing or was made with another key")

    def _compute_hash(self) -> str:
        bare = msgspec.structs.replace(self, content_hash="", signature="")
        return hashlib.sha256(canonical_json(bare)).hexdigest()


def _sign(content: str, key: bytes) -> str:
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def read_record(path: Path, key: bytes | None = None) -> Record:
    """Raises RecordError on anything that is not a whole, unchanged record."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise RecordError(f"{path}: not a record: {error}") from error
    if record.schema != SCHEMA:
        raise RecordError(f"{path}: schema {record.schema!r}, this version reads {SCHEMA!r}")
    try:
        record.check(key)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    return record
