from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hasten.evals.configuration import Configuration, differences, environment_parts, source_hash
from hasten.evals.record import RecordError
from hasten.evals.store import NamedBaseline, NotEvaluatedError, Store, StoreError
from hasten.evals.suite import load_suite

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import SUITE, opened, run


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a passing and a failing run."""
    root = tmp_path_factory.mktemp("store")
    with opened(root) as store:
        run(store, FakeTarget("base"), FakeTarget("good", noise=0.01))
        run(store, FakeTarget("base"), FakeTarget("bad", noise=0.5))
    return root


def test_runs_are_found_by_the_beginning_of_their_id_or_by_path(root: Path) -> None:
    store = Store(root)
    first, second = store.records()
    assert store.find(first.record_id[:8]) == first
    assert store.find(str(root / "records" / f"{second.record_id}.json")) == second
    assert store.find("0123456789ab") is None
    assert store.find("embedded") is None


def test_a_side_gets_a_name(root: Path) -> None:
    store = Store(root)
    record = store.records()[0]
    store.save_baseline(NamedBaseline("release-1", record.record_id, "baseline"))
    assert store.baselines() == [NamedBaseline("release-1", record.record_id, "baseline")]
    assert store.find_side("release-1") == record.baseline
    assert store.find_side(record.record_id) == record.candidate
    assert store.find_side("release-2") is None
    with pytest.raises(StoreError, match="not a name"):
        store.save_baseline(NamedBaseline("../evil", record.record_id, "baseline"))


def test_a_passing_record_of_exactly_this_configuration_is_required(root: Path) -> None:
    store = Store(root)
    good = FakeTarget("good", noise=0.01).configuration
    assert store.require_pass(SUITE, good).candidate == good
    bad = FakeTarget("bad", noise=0.5).configuration
    with pytest.raises(NotEvaluatedError, match="says fail"):
        store.require_pass(SUITE, bad)
    other = FakeTarget("good", noise=0.02).configuration
    with pytest.raises(NotEvaluatedError, match=r"differs in noise: 0\.02 here, 0\.01 there"):
        store.require_pass(SUITE, other)
    with pytest.raises(NotEvaluatedError, match="no passing 'quick' record"):
        store.require_pass(load_suite("quick"), good)
    lenient = msgspec.structs.replace(SUITE, alpha=0.4)
    with pytest.raises(NotEvaluatedError, match="used other blocks or limits"):
        store.require_pass(lenient, good)
    with pytest.raises(NotEvaluatedError, match="no passing 'small' record"):
        Store(root, key=b"who did not sign").require_pass(SUITE, good)


def test_a_damaged_record_hides_no_other(root: Path, tmp_path: Path) -> None:
    for path in (root / "records").glob("*.json"):
        (tmp_path / "records").mkdir(exist_ok=True)
        (tmp_path / "records" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "records" / "abcdef012345.json").write_text("{}")
    store = Store(tmp_path)
    assert len(store.records()) == 2
    with pytest.raises(RecordError, match="not a record"):
        store.find("abcdef")


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path, root: Path) -> None:
    (tmp_path / "file").write_text("")
    record = Store(root).records()[0]
    with pytest.raises(StoreError, match="cannot be written"):
        Store(tmp_path / "file").save(record)


def test_configurations_are_their_parts() -> None:
    one = Configuration("a", {"x": "1", "y": "2"})
    assert one.hash == Configuration("b", {"y": "2", "x": "1"}).hash
    assert one.hash != one.with_part("z", "").hash
    assert differences(one.parts, {"x": "1", "z": "3"}) == [
        "y: 2 here, (absent) there",
        "z: (absent) here, 3 there",
    ]


def test_the_environment_names_versions_and_source() -> None:
    parts = environment_parts()
    assert parts["source"] == source_hash()
    assert {"hasten", "torch", "python", "device"} <= set(parts)
