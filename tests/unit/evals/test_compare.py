from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hasten.evals.compare import Comparison
from hasten.evals.gate import Verdict
from hasten.evals.rows import DataFolder
from hasten.evals.target import CannotMeasureError
from hasten.evals.token_pairs import LOWER_BOUND

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import SUITE, opened, run


def test_two_runs_against_one_baseline_compare_without_a_model(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = run(store, FakeTarget("base"), FakeTarget("old", noise=0.01))
        second = run(store, FakeTarget("base"), FakeTarget("new", noise=0.012))
        record = Comparison(store, DataFolder(), first, second).execute()
    assert record.baseline == first.candidate
    assert record.candidate == second.candidate
    by_name = {judgement.name: judgement for judgement in record.judgements}
    assert record.verdict is Verdict.PASS, [b.error for b in record.blocks]
    assert by_name["text.kl_mean"].note == LOWER_BOUND
    assert by_name["one_text.text_changes"].verdict is Verdict.PASS
    assert by_name["speed.itl_ratio@1"].estimate == pytest.approx(1.0)


def test_damage_is_seen_from_stored_runs(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        first = run(store, FakeTarget("base"), FakeTarget("old", noise=0.01))
        second = run(store, FakeTarget("base"), FakeTarget("new", noise=0.5))
        record = Comparison(store, DataFolder(), first, second).execute()
    assert record.verdict is Verdict.FAIL


def test_runs_of_different_suites_do_not_compare(tmp_path: Path) -> None:
    other = msgspec.structs.replace(SUITE, blocks=SUITE.blocks[:1])
    with opened(tmp_path) as store:
        first = run(store, FakeTarget("base"), FakeTarget("old", noise=0.01))
        second = run(store, FakeTarget("base"), FakeTarget("new", noise=0.01), other)
        with pytest.raises(CannotMeasureError, match="different suites"):
            Comparison(store, DataFolder(), first, second).execute()
