"""Memory, and what becomes of drafts."""

from __future__ import annotations

import pytest
from hasten.evals.blocks.memory import MemoryBlock, MemoryResult
from hasten.evals.blocks.serving import ServingBlock
from hasten.evals.gate import Gate, Verdict
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder
from hasten.evals.target import Footprint
from hasten.evals.url_target import _metric

from tests.unit.evals.fakes import FakeTarget

SERVING = ServingBlock(
    name="speed",
    concurrency=[2],
    num_rounds=8,
    max_tokens=4,
    limits={"acceptance_loss": 0.05},
)


def acceptance_loss(base: float, cand: float) -> tuple[Verdict, str]:
    sides = FakeTarget("base"), FakeTarget("cand")
    for target, acceptance in zip(sides, (base, cand), strict=True):
        target.acceptance = acceptance
    pair = Pair(*sides, DataFolder(), author=sides[0])
    judged = Gate().judge(SERVING.measures(SERVING.observe(pair)))
    [found] = [one for one in judged if one.name == "speed.acceptance_loss@2"]
    return found.verdict, found.note


@pytest.mark.parametrize(
    ("base", "cand", "verdict", "note"),
    [
        (0.8, 0.8, Verdict.PASS, "80.0% and 80.0% of the drafts accepted"),
        (0.8, 0.6, Verdict.FAIL, "80.0% and 60.0% of the drafts accepted"),
        (0.8, 0.0, Verdict.MISSING, "no drafts are counted on both sides"),
    ],
)
def test_a_fall_in_acceptance_fails(base: float, cand: float, verdict: Verdict, note: str) -> None:
    assert acceptance_loss(base, cand) == (verdict, note)


def test_memory_is_counted_and_needs_no_samples() -> None:
    block = MemoryBlock(name="memory", limits={"weights_ratio": 0.6, "kv_ratio": 1.0})
    result = MemoryResult(Footprint(1000, 10.0), Footprint(500, 20.0))
    weights, kv = Gate().judge(block.measures(result))
    assert (weights.verdict, weights.estimate) == (Verdict.PASS, 0.5)
    assert weights.note == "1,000 and 500 bytes"
    assert (kv.verdict, kv.estimate) == (Verdict.FAIL, 2.0)


def test_counters_are_read_from_prometheus_text() -> None:
    text = '# TYPE a counter\na_total 3.0\nb_total{engine="0"} 1.5\nb_total{engine="1"} 2\n'
    assert _metric(text, "a_total") == 3.0
    assert _metric(text, "b_total") == 3.5
    assert _metric(text, "c_total") is None
