"""One request, one text, with the whole engine on interpreted kernels, quantised ones too.

One case always runs, small: what `make gpu-check` runs on a GPU (`tests/gpu/test_check.py` runs
more of it). The spine's property tests, on smaller workloads than the other backends', take most
of an hour on the interpreter: `make interpreter`.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.cpu.engine.test_one_request_one_text import Workload, check_one_text, check_preemption
from tests.cpu.quant.test_quantised_texts import CASES, bench_of
from tests.cpu.spec.test_lossless import METHODS, check_lossless, tiny_requests
from tests.gpu.setting import Setting
from tests.gpu.texts import check_texts

needs_patience = pytest.mark.skipif(
    not os.environ.get("HASTEN_INTERPRETER"), reason="takes an hour: `make interpreter`"
)


@pytest.mark.timeout(900)  # twenty seconds of work, on however busy a machine
def test_one_request_one_text() -> None:
    rows = list(check_texts(Setting("cpu", is_tiny=True), "int4"))
    assert [row for row in rows if not row["ok"]] == []
    scenarios = {row["scenario"]: row for row in rows}
    assert set(scenarios) == {"warm prefix cache", "alone", "chunks of 16", "preempted", "drafts"}
    assert scenarios["preempted"]["preemptions"] > 0


@needs_patience
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", CASES)
def test_texts_do_not_depend_on_company(case: str, seed: int) -> None:
    bench = bench_of(case, "triton")
    rng = random.Random(seed)
    workload = Workload(rng, bench.vocab_size, max_prompt=40, max_tokens=6, num_samples=6)
    check_one_text(bench, workload.requests())


@needs_patience
@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", CASES)
def test_preemption_changes_nothing(case: str) -> None:
    check_preemption(bench_of(case, "triton"), num_requests=6)


@needs_patience
@pytest.mark.timeout(0)
@pytest.mark.parametrize("case", CASES)
def test_speculation_changes_nothing(case: str) -> None:
    bench = bench_of(case, "triton")
    requests = tiny_requests(bench.vocab_size, 4, max_tokens=12)
    drafted, accepted = check_lossless(bench, requests, METHODS[-1:], ("1", "3"))
    assert 0 < accepted < drafted
