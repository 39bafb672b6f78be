"""Lossless: the same token ids and log-probabilities, bit for bit, at any depth of any proposer.

Tiny random models repeat themselves when few tokens are allowed, and the embedded model when it is
asked to; so drafts are right at times and wrong at others. Exercised on every backend
(`--kernels NAME` for one): `pytest tests/cpu/spec`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.engine import Engine
from hasten.core.latency import StepTimeModel
from hasten.core.loading import LoadError, load_model
from hasten.core.messages import AddRequest
from hasten.core.options import EngineOptions, SpeculationOptions
from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType
from hasten.spec import make_speculator

from tests.helpers.engines import Answers, ask, expect_short_outputs, run_requests
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.workbench import Workbench

METHODS = ("ngram", "suffix", "auto")
DEPTHS = ("1", "3", "8", "auto")
MAX_LEN = 320
INSTRUCTIONS = (
    "Repeat this list three times: red, green, blue, yellow.",
    "Write a short poem about the sea, and repeat its first line at the end.",
    "Copy this sentence exactly: The quick brown fox jumps over the lazy dog. The quick brown fox",
    "def add(a, b):\n    return a + b\n\nWrite the same function for sub, mul and div.",
)


@lru_cache(maxsize=1)
def bench_of(name: str, kernels: str) -> Workbench:
    """Compiled once for the tests that follow each other on it."""
    if name == "embedded":
        model, dtype = load_model("embedded"), DType.BF16
    else:
        model, dtype = random_model(tiny_config()), DType.F32
    return Workbench.make(model, kernels, dtype, num_blocks=400, max_model_len=MAX_LEN)


def params_mix(rng: random.Random, vocab_size: int, max_tokens: int) -> GenerationParams:
    """Temperatures 0, 0.7 and 1.0 under penalties, bias, min_p, stops and log-probabilities."""
    rare: dict[str, Any] = {
        "min_p": 0.05,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.2,
        "logit_bias": {rng.randrange(vocab_size): 2.0},
        "min_tokens": max_tokens // 2,
        "stop_token_ids": tuple(rng.sample(range(vocab_size), 4)),
        "bad_words": ((rng.randrange(vocab_size), rng.randrange(vocab_size)),),
    }
    fields = {name: rare[name] for name in rng.sample(sorted(rare), rng.choice((0, 1, 3)))}
    return GenerationParams(
        max_tokens=max_tokens,
        seed=rng.getrandbits(64),
        temperature=rng.choice((0.0, 0.7, 1.0)),
        logprobs=rng.choice((None, 0, 3)),
        **fields,
    )


def tiny_requests(vocab_size: int, count: int, max_tokens: int = 40) -> list[AddRequest]:
    """Half of them may use few tokens only, and so repeat themselves."""
    rng = random.Random(11)
    requests = []
    for i in range(count):
        few = tuple(rng.sample(range(vocab_size), 3))
        params = params_mix(rng, vocab_size, max_tokens)
        if i % 2:
            params = GenerationParams(
                max_tokens=max_tokens, seed=i, temperature=0.7, logprobs=1, allowed_token_ids=few
            )
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(3, 20))] * 2
        requests.append(ask(f"r{i}", prompt, params))
    return requests


def growing_requests(vocab_size: int, count: int) -> list[AddRequest]:
    """Short prompts and long answers, so that a pool which holds all at first runs out."""
    rng = random.Random(2)
    requests = []
    for i in range(count):
        few = tuple(rng.sample(range(vocab_size), 3))
        params = GenerationParams(
            max_tokens=50, seed=i, temperature=0.7, logprobs=1, allowed_token_ids=few
        )
        requests.append(ask(f"r{i}", few * 2, params))
    return requests


def embedded_requests(vocab_size: int) -> list[AddRequest]:
    rng, tokenizer = random.Random(5), load_tokenizer("embedded")
    return [
        ask(f"r{i}", tokenizer.encode(text), params_mix(rng, vocab_size, 40))
        for i, text in enumerate(INSTRUCTIONS * 2)
    ]


def step_times() -> StepTimeModel:
    """Rows a twentieth as dear as a step, so that `auto` has something to decide."""
    model = StepTimeModel()
    model.body.set(1, 0.002)
    model.body.set(101, 0.012)
    return model


def speculating(bench: Workbench, method: str, depth: str, **size: Any) -> Engine:
    options = EngineOptions(speculation=SpeculationOptions(method, depth))
    return bench.engine(speculator=make_speculator(options, step_times()), **size)


def check_lossless(
    bench: Workbench,
    requests: Sequence[AddRequest],
    methods: Sequence[str],
    depths: Sequence[str],
    **size: Any,
) -> tuple[int, int]:
    """Returns the numbers of drafted and accepted tokens of all that ran."""
    expected = run_requests(bench.engine(), list(requests))
    num_drafted = num_accepted = 0
    for method in methods:
        for depth in depths:
            engine = speculating(bench, method, depth, **size)
            assert_same(run_requests(engine, list(requests)), expected, f"{method} {depth}")
            stats = engine.stats()
            assert stats.num_free_blocks == stats.num_total_blocks
            num_drafted += stats.num_draft_tokens
            num_accepted += stats.num_accepted_draft_tokens
    return num_drafted, num_accepted


def assert_same(found: Answers, expected: Answers, how: str) -> None:
    assert found.keys() == expected.keys()
    for key, answer in expected.items():
        assert found[key].text == answer.text, f"{how}: {key}"


def test_any_proposer_and_depth(kernels: str) -> None:
    bench = bench_of("tiny", kernels)
    requests = tiny_requests(bench.vocab_size, 12)
    drafted, accepted = check_lossless(bench, requests, METHODS, DEPTHS)
    assert 0 < accepted < drafted


def test_in_chunks_and_without_a_prefix_cache(kernels: str) -> None:
    bench = bench_of("tiny", kernels)
    requests = tiny_requests(bench.vocab_size, 12)
    size = {"max_num_batched_tokens": 24, "enable_prefix_caching": False}
    _, accepted = check_lossless(bench, requests, ("auto",), ("3", "auto"), **size)
    assert accepted > 0


def test_while_requests_are_preempted(kernels: str) -> None:
    bench = bench_of("tiny", kernels)
    requests = growing_requests(bench.vocab_size, 12)
    total, largest = bench.demand(requests)
    num_blocks = 1 + max(largest, total // 2)
    expected = run_requests(bench.engine(), requests)
    for depth in ("3", "auto"):
        engine = speculating(bench, "auto", depth, num_blocks=num_blocks)
        expect_short_outputs(engine)
        assert_same(run_requests(engine, requests), expected, depth)
        assert engine.stats().num_preemptions > 0
        assert engine.stats().num_accepted_draft_tokens > 0


def test_the_embedded_model(kernels: str) -> None:
    try:
        bench = bench_of("embedded", kernels)
    except LoadError as error:
        pytest.skip(str(error))
    requests = embedded_requests(bench.vocab_size)
    _, accepted = check_lossless(bench, requests, ("auto",), ("1", "8", "auto"))
    assert accepted > 0
