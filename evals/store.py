"""Where records, answers and named baselines are kept.

    records/<id>.json             finished runs
    answers/<configuration>.journal   answers of one configuration, by content
    runs/<pair>.journal           finished blocks of one pair, so that a run can go on
    baselines/<name>.json         a name for one side of a record

Exercised by `pytest tests/unit/evals/test_store.py`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from hasten.core.loading.cache import cache_folder
from hasten.evals.canonical import content_hash
from hasten.evals.configuration import Configuration, ConfigurationHash, differences
from hasten.evals.gate import Verdict
from hasten.evals.journal import Journal
from hasten.evals.record import Record, RecordError, read_record

if TYPE_CHECKING:
    from hasten.evals.suite import Suite

SideName = Literal["baseline", "candidate"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RECORD_ID = re.compile(r"[0-9a-f]{6,64}")


class StoreError(RuntimeError):
    """The store cannot be read or written; the message names the file."""


class NotEvaluatedError(RuntimeError):
    """No passing record exists for a configuration; the message says what differs."""


class NamedBaseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side of a record under a name of its own."""

    name: str
    record_id: str
    side: SideName


class Store:
    """A folder of results. `key` signs new records and is demanded of those read."""

    def __init__(self, root: Path, key: bytes | None = None) -> None:
        self.root = root
        self._key = key
        self._journals: dict[Path, Journal] = {}

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()

    def answers(self, configuration: ConfigurationHash, *, keep: bool = True) -> Journal:
        """The answers of a configuration; both sides of a run may share one."""
        return self._journal(self.root / "answers" / f"{configuration[:32]}.journal", keep=keep)

    def blocks(
        self, baseline: ConfigurationHash, candidate: ConfigurationHash, *, keep: bool = True
    ) -> Journal:
        """The finished blocks of a pair of configurations."""
        name = content_hash([baseline, candidate])[:32]
        return self._journal(self.root / "runs" / f"{name}.journal", keep=keep)

    def save(self, record: Record) -> tuple[Record, Path]:
        """Seal and write a record. Raises StoreError (a full disk, say)."""
        sealed = record.sealed(self._key)
        path = self._record_path(sealed.record_id)
        _write(path, msgspec.json.format(msgspec.json.encode(sealed), indent=1))
        return sealed, path

    def find(self, reference: str) -> Record | None:
        """The record of that id or path; None when there is none. Raises RecordError."""
        by_path = Path(reference)
        if by_path.suffix == ".json" and by_path.is_file():
            return read_record(by_path, self._key)
        if not _RECORD_ID.fullmatch(reference):
            return None
        found = sorted((self.root / "records").glob(f"{reference}*.json"))
        if len(found) > 1:
            raise RecordError(f"{reference!r} begins several records' ids; give more digits")
        return read_record(found[0], self._key) if found else None

    def records(self) -> list[Record]:
        """All records that read well, oldest first."""
        found = []
        for path in (self.root / "records").glob("*.json"):
            try:
                found.append(read_record(path, self._key))
            except RecordError:
                # One bad file must not hide the others; `find` names it when it is asked for.
                continue
        return sorted(found, key=lambda record: record.created)

    def save_baseline(self, baseline: NamedBaseline) -> Path:
        """Raises StoreError when the name is not one."""
        if not _NAME.fullmatch(baseline.name):
            raise StoreError(f"{baseline.name!r} is not a name: letters, digits, . _ - only")
        path = self.root / "baselines" / f"{baseline.name}.json"
        _write(path, msgspec.json.encode(baseline))
        return path

    def baselines(self) -> list[NamedBaseline]:
        paths = sorted((self.root / "baselines").glob("*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=NamedBaseline) for path in paths]

    def find_side(self, reference: str) -> Configuration | None:
        """What a saved baseline's name, or a record (its candidate), stands for."""
        for baseline in self.baselines():
            if baseline.name == reference:
                record = self.find(baseline.record_id)
                if record is None:
                    raise StoreError(
                        f"baseline {reference!r} names record {baseline.record_id}, which is gone"
                    )
                return record.baseline if baseline.side == "baseline" else record.candidate
        record = self.find(reference)
        return None if record is None else record.candidate

    def require_pass(self, suite: Suite, candidate: Configuration) -> Record:
        """The newest record of exactly this configuration under exactly this suite, if it passes.

        Raises NotEvaluatedError saying what the nearest record differs in.
        """
        namesakes = [record for record in self.records() if record.suite.name == suite.name]
        records = [record for record in namesakes if record.suite.hash == suite.hash]
        if namesakes and not records:
            raise NotEvaluatedError(
                f"no record is of this {suite.name!r} suite: those there are used other blocks or "
                "limits"
            )
        exact = [record for record in records if record.candidate.hash == candidate.hash]
        if exact and exact[-1].verdict is Verdict.PASS:
            return exact[-1]
        raise NotEvaluatedError(_why_not(suite.name, candidate, records, exact))

    def _journal(self, path: Path, *, keep: bool) -> Journal:
        if path not in self._journals:
            if not keep:
                path.unlink(missing_ok=True)
            self._journals[path] = Journal(path)
        return self._journals[path]

    def _record_path(self, record_id: str) -> Path:
        return self.root / "records" / f"{record_id}.json"


def default_root() -> Path:
    """`$HASTEN_EVAL_STORE`, else a folder in the user's cache."""
    chosen = os.environ.get("HASTEN_EVAL_STORE")
    return Path(chosen) if chosen else cache_folder() / "evals"


def _why_not(
    suite: str, candidate: Configuration, records: list[Record], exact: list[Record]
) -> str:
    if exact:
        return f"the newest {suite!r} record of this configuration says {exact[-1].verdict.value}"
    passing = [record for record in records if record.verdict is Verdict.PASS]
    if not passing:
        return f"there is no passing {suite!r} record of any configuration"
    gaps = [differences(candidate.parts, record.candidate.parts) for record in passing]
    nearest = min(gaps, key=len)
    return (
        f"no passing {suite!r} record of exactly this configuration; the nearest differs in "
        + "; ".join(nearest)
    )


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error
