"""One request, one text, with quantised weights and caches: the spine's property, bit for bit.

The workloads and scenarios are those of `tests/cpu/engine/test_one_request_one_text.py`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache

import pytest
from hasten.core.loading.quantize import LoadTimeQuantization
from hasten.core.models import weight_specs
from hasten.kernels.dtypes import DType

from tests.cpu.engine.test_one_request_one_text import Workload, check_one_text
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.workbench import Workbench


@lru_cache(maxsize=1)
def bench_of(scheme: str) -> Workbench:
    config = tiny_config(windows=(None, 24))
    plain = random_model(config)
    conversion = LoadTimeQuantization(scheme, lm_head=True)
    model = replace(plain, weights=conversion.apply(weight_specs(config), plain.weights))
    return Workbench.make(
        model,
        "reference",
        DType.BF16,
        num_blocks=400,
        max_model_len=256,
        kv_dtype=DType.FP8_E4M3,
    )


@pytest.mark.parametrize("scheme", ["int4", "fp8"])
@pytest.mark.parametrize("seed", [1, 2])
def test_texts_do_not_depend_on_company(scheme: str, seed: int) -> None:
    bench = bench_of(scheme)
    workload = Workload(random.Random(seed), bench.vocab_size, max_prompt=90, max_tokens=24)
    check_one_text(bench, workload.requests())
