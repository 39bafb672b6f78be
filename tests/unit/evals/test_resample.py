from __future__ import annotations

from pathlib import Path

from hasten.evals.gate import Verdict
from hasten.evals.resample import resampled_verdicts

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import opened, run


def test_plain_verdicts_come_out_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        good = run(store, FakeTarget("base"), FakeTarget("good", noise=0.01))
        bad = run(store, FakeTarget("base"), FakeTarget("bad", noise=0.5))
    assert resampled_verdicts(good, 3) == {Verdict.PASS: 3}
    assert resampled_verdicts(bad, 3) == {Verdict.FAIL: 3}


def test_trials_depend_on_the_seed_alone_and_leave_the_record_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        record = run(store, FakeTarget("base"), FakeTarget("cand", noise=0.1))
    before = record.content_hash
    assert resampled_verdicts(record, 3, seed=2) == resampled_verdicts(record, 3, seed=2)
    record.check()
    assert record.content_hash == before
