from __future__ import annotations

import json
from pathlib import Path

import pytest
from hasten.evals.record import Record, RecordError, read_record

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import opened, run

KEY = b"a key that nobody knows"


@pytest.fixture(name="stored", scope="module")
def _stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, str]:
    root = tmp_path_factory.mktemp("store")
    with opened(root, KEY) as store:
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01))
    return record, (root / "records" / f"{record.record_id}.json").read_text()


def test_a_record_reads_back_as_it_was(stored: tuple[Record, str], tmp_path: Path) -> None:
    record, text = stored
    (tmp_path / "r.json").write_text(text)
    assert read_record(tmp_path / "r.json", KEY) == record
    assert json.loads(text)["schema"] == "hasten.evals.record/1"


@pytest.mark.parametrize(
    ("old", "new"),
    [('"verdict": "pass"', '"verdict": "fail"'), ('"noise": "0.01"', '"noise": "0.02"')],
)
def test_a_changed_record_does_not_load(
    stored: tuple[Record, str], tmp_path: Path, old: str, new: str
) -> None:
    text = stored[1]
    assert old in text
    (tmp_path / "r.json").write_text(text.replace(old, new, 1))
    with pytest.raises(RecordError, match=r"r\.json: the contents do not match"):
        read_record(tmp_path / "r.json")


def test_a_resealed_record_lacks_the_signature(stored: tuple[Record, str], tmp_path: Path) -> None:
    import msgspec

    forged = stored[0].sealed()
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(forged))
    assert read_record(tmp_path / "r.json") == forged
    with pytest.raises(RecordError, match="signature is missing"):
        read_record(tmp_path / "r.json", KEY)


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_cut_record_is_named(stored: tuple[Record, str], tmp_path: Path, length: int) -> None:
    (tmp_path / "r.json").write_text(stored[1][:length])
    with pytest.raises(RecordError, match=r"r\.json: not a record"):
        read_record(tmp_path / "r.json")


def test_a_later_schema_is_refused(stored: tuple[Record, str], tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(stored[1].replace("record/1", "record/2", 1))
    with pytest.raises(RecordError, match=r"schema 'hasten\.evals\.record/2'"):
        read_record(tmp_path / "r.json")
