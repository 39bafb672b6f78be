"""One request, one text: the same token ids and log-probabilities, bit for bit, however it ran.

The first answer is that of each request alone in an empty server. Every scenario after it puts
the request among others, cuts prompts into chunks, finds prefixes in the cache, takes memory away,
lets in more than memory holds so that requests are preempted, or drafts tokens at random depths.

Runs on every backend (`--kernels NAME` for one): `pytest tests/cpu/engine`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
from hasten.core.engine import Engine
from hasten.core.loading import LoadError, load_model
from hasten.core.messages import AddRequest
from hasten.core.params import GenerationParams
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.engines import Answers, ask, expect_short_outputs, run_alone, run_requests
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.speculators import ScriptedSpeculator, patchy
from tests.helpers.workbench import Workbench

NUM_SAMPLES = 16
NUM_ALONE = 5
"""How many of the requests are run alone too; the others are company."""

TINY = {
    "plain": (tiny_config(), DType.F32, DType.F32),
    "bfloat16": (tiny_config(qk_norm=True), DType.BF16, DType.BF16),
    "windowed": (tiny_config(windows=(None, 24, None)), DType.F32, DType.F32),
    "fp8 cache": (tiny_config(), DType.BF16, DType.FP8_E4M3),
}


@lru_cache(maxsize=1)
def bench_of(name: str, kernels: str) -> Workbench:
    """Compiled once for the tests that follow each other on it."""
    if name == "embedded":
        model, dtype, kv_dtype = load_model("embedded"), DType.BF16, DType.BF16
    else:
        config, dtype, kv_dtype = TINY[name]
        model = random_model(config)
    if kv_dtype not in get_backend(kernels).kv_dtypes:
        pytest.skip(f"kernels {kernels} have no KV cache of {kv_dtype.value}")
    return Workbench.make(
        model, kernels, dtype, num_blocks=400, max_model_len=256, kv_dtype=kv_dtype
    )


@dataclass(slots=True)
class Workload:
    """Requests with `num_samples` samples in all, as a seed draws them."""

    rng: random.Random
    vocab_size: int
    max_prompt: int
    max_tokens: int
    num_samples: int = NUM_SAMPLES

    def requests(self) -> list[AddRequest]:
        stem = self._tokens(self.max_prompt)
        requests: list[AddRequest] = []
        num_left = self.num_samples
        while num_left > 0:
            params = self._params(min(num_left, self.rng.choice((1, 1, 1, 2, 3))))
            num_shared = self.rng.choice((0, 0, self.rng.randrange(self.max_prompt // 2)))
            num_own = self.rng.randint(1, self.max_prompt - num_shared)
            prompt = stem[:num_shared] + self._tokens(num_own)
            requests.append(ask(f"r{len(requests)}", prompt, params))
            num_left -= params.n
        return requests

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(self.vocab_size) for _ in range(count)]

    def _params(self, n: int) -> GenerationParams:
        rng = self.rng
        fields: dict[str, Any] = {
            "max_tokens": rng.randint(self.max_tokens // 2, self.max_tokens),
            "seed": rng.getrandbits(64),
            "temperature": rng.choice((0.0, 0.5, 1.0, 1.5)),
            "n": n,
            "logprobs": rng.choice((None, 0, 4)),
        }
        rare = {
            "top_k": rng.randint(1, 20),
            "top_p": rng.uniform(0.3, 0.95),
            "min_p": rng.uniform(0.01, 0.3),
            "presence_penalty": rng.uniform(-1, 1),
            "frequency_penalty": rng.uniform(-1, 1),
            "repetition_penalty": rng.uniform(0.7, 1.5),
            "logit_bias": {rng.randrange(self.vocab_size): rng.uniform(-5, 5)},
            "prompt_logprobs": rng.randint(0, 3),
        }
        for name in rng.sample(sorted(rare), rng.choice((0, 0, 1, 2, 3))):
            fields[name] = rare[name]
        return GenerationParams(**fields)


Scenario = Callable[[Workbench, list[AddRequest], Answers], Engine]


def roomy(**changes: Any) -> Scenario:
    def scenario(bench: Workbench, requests: list[AddRequest], expected: Answers) -> Engine:
        return bench.engine(**changes)

    return scenario


def tight(bench: Workbench, requests: list[AddRequest], expected: Answers) -> Engine:
    """A pool of 60 % of demand."""
    total, largest = bench.demand(requests)
    return bench.engine(num_blocks=1 + max(largest, int(0.6 * total)), max_num_batched_tokens=64)


def overbooked(bench: Workbench, requests: list[AddRequest], expected: Answers) -> Engine:
    """The same, where outputs turn out much longer than they used to be."""
    engine = tight(bench, requests, expected)
    expect_short_outputs(engine)
    return engine


def drafted(bench: Workbench, requests: list[AddRequest], expected: Answers) -> Engine:
    texts = {key: answer.token_ids for key, answer in expected.items()}
    script = patchy(bench.vocab_size, texts, seed=len(requests))
    speculator = ScriptedSpeculator(script, max_depth=6)
    return bench.engine(max_num_batched_tokens=256, speculator=speculator)


SCENARIOS: dict[str, Scenario] = {
    "chunks of 16": roomy(max_num_batched_tokens=16),
    "chunks of 64, no prefix cache": roomy(max_num_batched_tokens=64, enable_prefix_caching=False),
    "tight pool": tight,
    "overbooked pool": overbooked,
    "drafts": drafted,
}


def check_one_text(bench: Workbench, requests: list[AddRequest]) -> None:
    """Alone, together, and every scenario."""
    together = bench.engine()
    expected = run_requests(together, requests)
    assert_same(run_requests(together, requests), expected, "warm prefix cache")
    alone = run_alone(bench.engine(), requests[:NUM_ALONE])
    assert_same(alone, {key: expected[key] for key in alone}, "alone")
    for name in SCENARIOS:
        check_scenario(name, bench, requests, expected)


def check_scenario(
    name: str, bench: Workbench, requests: list[AddRequest], expected: Answers
) -> int:
    """Run one scenario; returns how often requests were preempted."""
    engine = SCENARIOS[name](bench, requests, expected)
    assert_same(run_requests(engine, requests), expected, name)
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_total_blocks, f"{name}: blocks are missing"
    if name == "tight pool":
        num_computed = engine._scheduler.num_computed_tokens
        assert stats.num_recomputed_tokens <= 0.1 * num_computed, "too much is computed again"
    return stats.num_preemptions


def assert_same(found: Answers, expected: Answers, scenario: str) -> None:
    assert found.keys() == expected.keys()
    for key, answer in expected.items():
        assert found[key].text == answer.text, f"{scenario}: {key}"


def distinct_requests(
    vocab_size: int, max_prompt: int, max_tokens: int, count: int
) -> list[AddRequest]:
    """Nothing to share and outputs of full length, so that a tight pool really runs out."""
    rng = random.Random(5)
    return [
        ask(
            f"r{i}",
            [rng.randrange(vocab_size) for _ in range(rng.randint(max_prompt // 2, max_prompt))],
            GenerationParams(max_tokens=max_tokens, seed=i, ignore_eos=True, logprobs=1),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("name", TINY)
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_tiny_random_models(name: str, kernels: str, seed: int) -> None:
    bench = bench_of(name, kernels)
    workload = Workload(random.Random(seed), bench.vocab_size, max_prompt=60, max_tokens=20)
    check_one_text(bench, workload.requests())


def check_preemption(bench: Workbench, num_requests: int = NUM_SAMPLES) -> None:
    requests = distinct_requests(bench.vocab_size, 15, 20, num_requests)
    expected = run_requests(bench.engine(), requests)
    check_scenario("tight pool", bench, requests, expected)
    assert check_scenario("overbooked pool", bench, requests, expected) > 0


def test_preemption_changes_nothing(kernels: str) -> None:
    check_preemption(bench_of("plain", kernels))


@pytest.fixture
def embedded(kernels: str) -> Workbench:
    try:
        return bench_of("embedded", kernels)
    except LoadError as error:
        pytest.skip(str(error))


def test_the_embedded_model(embedded: Workbench) -> None:
    workload = Workload(random.Random(1), embedded.vocab_size, max_prompt=60, max_tokens=10)
    check_one_text(embedded, workload.requests())


def test_preemption_changes_nothing_on_the_embedded_model(embedded: Workbench) -> None:
    check_preemption(embedded)
