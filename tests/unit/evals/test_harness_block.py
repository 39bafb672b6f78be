from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hasten.evals.blocks.harness import HarnessBlock, HarnessItem, HarnessResult
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder
from hasten.evals.target import CannotMeasureError

from tests.unit.evals.fakes import FakeTarget

BLOCK = HarnessBlock(name="arc", task="arc_easy", num_items=3, limits={"score_loss": 0.1})


def pair() -> Pair:
    base, cand = FakeTarget("base"), FakeTarget("cand")
    return Pair(base, cand, DataFolder(), author=base)


def test_items_of_both_sides_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_task(
        target: FakeTarget, task: str, metric: str, num_items: int, folder: Path | None, _: object
    ) -> SimpleNamespace:
        assert (task, metric, num_items, folder) == ("arc_easy", "acc", 3, None)
        lost = target.configuration.name == "cand"
        return SimpleNamespace(values={"0": 1.0, "1": 0.0 if lost else 1.0}, data_hash="abc")

    harness = ModuleType("hasten.evals.harness")
    harness.run_task = run_task  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "hasten.evals.harness", harness)
    asked = pair()
    result = BLOCK.observe(asked)
    assert result.items == [HarnessItem("0", 1.0, 1.0), HarnessItem("1", 1.0, 0.0)]
    assert asked.data.hashes == {"lm_eval:arc_easy": "abc"}


def test_without_the_harness_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hasten.evals.harness", None)
    with pytest.raises(CannotMeasureError, match="pip install lm_eval"):
        BLOCK.observe(pair())


def test_right_and_wrong_are_a_loss_of_accuracy_and_other_numbers_a_mean_fall() -> None:
    binary = HarnessResult([HarnessItem(str(i), 1.0, float(i > 0)) for i in range(10)])
    [measure] = BLOCK.measures(binary)
    assert measure.name == "arc.score_loss"
    assert measure.limit == 0.1
    assert measure.note == "acc 1.000 and 0.900 over 10 items"
    assert measure.harm is not None
    assert (measure.harm.estimate, measure.harm.sample) == (0.1, "items")
    graded = HarnessResult([HarnessItem(str(i), 0.5, 0.5 - i / 100) for i in range(10)])
    [measure] = BLOCK.measures(graded)
    assert measure.harm is not None
    assert measure.harm.estimate == pytest.approx(0.045)
