"""The spine's properties with quantised weights and caches, bit for bit: one request, one text,
also where requests are preempted, and lossless speculation at every depth.

Workloads, scenarios and proposers are those of `tests/cpu/engine/test_one_request_one_text.py` and
`tests/cpu/spec/test_lossless.py`; the backend is the reference.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import pytest
from hasten.core.loading.quantize import LoadTimeQuantization
from hasten.core.models import weight_specs
from hasten.kernels.dtypes import DType

from tests.cpu.engine.test_one_request_one_text import Workload, check_one_text, check_preemption
from tests.cpu.spec.test_lossless import METHODS, check_lossless, tiny_requests
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.workbench import Workbench

CASES = {
    "bf16": (None, DType.BF16),
    "int4": ("int4", DType.BF16),
    "fp8 KV": (None, DType.FP8_E4M3),
    "int4, fp8 KV": ("int4", DType.FP8_E4M3),
    "fp8, fp8 KV": ("fp8", DType.FP8_E4M3),
}


@lru_cache(maxsize=1)
def bench_of(case: str, kernels: str = "reference") -> Workbench:
    """Compiled once for the tests that follow each other on it."""
    scheme, kv_dtype = CASES[case]
    config = tiny_config(windows=(None, 24))
    model = random_model(config)
    if scheme is not None:
        conversion = LoadTimeQuantization(scheme, lm_head=True)
        model = replace(model, weights=conversion.apply(weight_specs(config), model.weights))
    return Workbench.make(
        model, kernels, DType.BF16, num_blocks=400, max_model_len=256, kv_dtype=kv_dtype
    )


@pytest.fixture(params=CASES, scope="module")
def bench(request: pytest.FixtureRequest) -> Workbench:
    return bench_of(request.param)


def test_texts_do_not_depend_on_company(bench: Workbench) -> None:
    workload = Workload(random.Random(1), bench.vocab_size, max_prompt=90, max_tokens=24)
    check_one_text(bench, workload.requests())


def test_preemption_changes_nothing(bench: Workbench) -> None:
    check_preemption(bench)


def test_speculation_changes_nothing(bench: Workbench) -> None:
    requests = tiny_requests(bench.vocab_size, 8)
    drafted, accepted = check_lossless(bench, requests, METHODS[-1:], ("1", "3", "8"))
    assert 0 < accepted < drafted
