from __future__ import annotations

import numpy as np
import pytest
from hasten.evals.gate import Gate, Judgement, Measure, Verdict, overall
from hasten.evals.harm import BootstrapHarm, Harm, NoneAllowed, PairedLoss, RateHarm

GATE = Gate()


def judge_one(harm: Harm | None, limit: float | None) -> Judgement:
    return GATE.judge([Measure("m", "", harm, limit, note="" if harm else "no data")])[0]


def kl_clusters(mean: float, num: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.exponential(mean, size=30) for _ in range(num)]


@pytest.mark.parametrize(
    ("harm", "limit", "verdict"),
    [
        (BootstrapHarm.mean(kl_clusters(0.001, 30)), 0.01, Verdict.PASS),
        (BootstrapHarm.mean(kl_clusters(0.03, 30)), 0.01, Verdict.FAIL),
        (BootstrapHarm.mean(kl_clusters(0.0085, 10)), 0.01, Verdict.UNDECIDED),
        (BootstrapHarm.mean(kl_clusters(0.001, 3)), 0.01, Verdict.UNDECIDED),
        (RateHarm(0, 2000), 0.002, Verdict.PASS),
        (RateHarm(0, 200), 0.002, Verdict.UNDECIDED),
        (RateHarm(20, 2000), 0.002, Verdict.FAIL),
        (NoneAllowed(0, 10), 0.0, Verdict.PASS),
        (NoneAllowed(1, 10), 0.0, Verdict.FAIL),
        (PairedLoss(3, 2, 400), 0.03, Verdict.PASS),
        (PairedLoss(40, 2, 200), 0.03, Verdict.FAIL),
        (PairedLoss(4, 2, 60), 0.03, Verdict.UNDECIDED),
        (PairedLoss(40, 2, 200), None, Verdict.INFORMATION),
        (None, 0.01, Verdict.MISSING),
        (None, None, Verdict.INFORMATION),
    ],
)
def test_verdicts(harm: Harm | None, limit: float | None, verdict: Verdict) -> None:
    judgement = judge_one(harm, limit)
    assert judgement.verdict is verdict
    assert (judgement.more_samples is not None) == (verdict is Verdict.UNDECIDED)


def test_undecided_says_how_many_more_would_do() -> None:
    judgement = judge_one(RateHarm(0, 200), 0.002)
    assert judgement.more_samples is not None
    enough = RateHarm(0, 200 + judgement.more_samples)
    assert judge_one(enough, 0.002).verdict is Verdict.PASS
    assert judge_one(RateHarm(0, enough.num_samples - 1), 0.002).verdict is Verdict.UNDECIDED


def test_one_lucky_p_value_among_many_does_not_fail_the_whole() -> None:
    unlucky = Measure("unlucky", "", RateHarm(6, 1000), 0.002)
    assert unlucky.harm is not None
    assert 0.01 < unlucky.harm.p_exceeds(0.002) < 0.05
    alone = GATE.judge([unlucky])
    among = GATE.judge(
        [unlucky, *(Measure(f"m{i}", "", RateHarm(0, 2000), 0.002) for i in range(9))]
    )
    assert alone[0].verdict is Verdict.FAIL
    assert among[0].verdict is Verdict.UNDECIDED


def test_a_measure_passes_by_evidence_only() -> None:
    few, many = PairedLoss(0, 0, 20), PairedLoss(0, 0, 400)
    assert judge_one(few, 0.02).verdict is Verdict.UNDECIDED
    assert judge_one(many, 0.02).verdict is Verdict.PASS


def _judgements(*verdicts: Verdict) -> list[Judgement]:
    return [Judgement(name=str(i), unit="", verdict=v, note="") for i, v in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("verdicts", "whole", "exit_code"),
    [
        ([Verdict.PASS, Verdict.INFORMATION], Verdict.PASS, 0),
        ([Verdict.PASS, Verdict.MISSING], Verdict.UNDECIDED, 2),
        ([Verdict.PASS, Verdict.UNDECIDED], Verdict.UNDECIDED, 2),
        ([Verdict.UNDECIDED, Verdict.FAIL, Verdict.PASS], Verdict.FAIL, 1),
        ([Verdict.INFORMATION], Verdict.UNDECIDED, 2),
        ([], Verdict.UNDECIDED, 2),
    ],
)
def test_overall(verdicts: list[Verdict], whole: Verdict, exit_code: int) -> None:
    assert overall(_judgements(*verdicts)) is whole
    assert whole.exit_code == exit_code


def test_benign_pairs_pass_and_damage_fails_in_repeated_trials() -> None:
    rng = np.random.default_rng(3)
    verdicts = {"benign": 0, "damaged": 0}
    for _ in range(20):
        benign = [rng.exponential(0.004, size=100) for _ in range(32)]
        damaged = [rng.exponential(0.02, size=100) for _ in range(32)]
        verdicts["benign"] += judge_one(BootstrapHarm.mean(benign), 0.01).verdict is Verdict.PASS
        verdicts["damaged"] += judge_one(BootstrapHarm.mean(damaged), 0.01).verdict is Verdict.FAIL
    assert verdicts == {"benign": 20, "damaged": 20}
