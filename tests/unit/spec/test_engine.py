"""Speculation in the engine, over the mock model: no token and no cache hit changes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hasten.core.engine import Engine
from hasten.core.latency import StepTimeModel
from hasten.core.messages import AddRequest
from hasten.core.options import EngineOptions, SpeculationOptions
from hasten.core.params import GenerationParams, Speculative
from hasten.spec import make_speculator
from hasten.spec.speculator import Speculator

from tests.helpers.engines import (
    VOCAB_SIZE,
    Answers,
    EngineSize,
    ask,
    expect_short_outputs,
    make_parts,
    mock_engine,
    run_alone,
    run_requests,
)
from tests.helpers.mock_model import MockExecutor

METHODS = ["ngram", "suffix", "auto"]
DEPTHS = ["0", "1", "3", "8", "16", "auto"]
SIZES = {
    "roomy": EngineSize(),
    "chunked": EngineSize(max_num_batched_tokens=16, enable_prefix_caching=False),
    "tight": EngineSize(num_blocks=24, max_model_len=160),
}


def cheap_rows() -> StepTimeModel:
    model = StepTimeModel()
    model.body.set(1, 0.002)
    model.body.set(64, 0.003)
    return model


def speculator_of(method: str, depth: str) -> Speculator:
    options = EngineOptions(speculation=SpeculationOptions(method, depth))
    speculator = make_speculator(options, cheap_rows())
    assert speculator is not None
    return speculator


def speculating_engine(size: EngineSize, method: str, depth: str) -> Engine:
    return mock_engine(size, speculator_of(method, depth))


def repetitive_requests(count: int = 10) -> list[AddRequest]:
    """Prompts that repeat themselves, every sampling parameter in the mix, and tokens that recur.

    Few allowed tokens make the mock repeat itself, so that drafts are right now and then.
    """
    rng = random.Random(3)
    stem = [rng.randrange(VOCAB_SIZE) for _ in range(12)]
    requests = []
    for i in range(count):
        fields: dict[str, Any] = {
            "max_tokens": rng.randint(20, 60),
            "seed": i,
            "temperature": rng.choice((0.0, 0.7, 1.0)),
            "eos_token_ids": (0,),
        }
        rare: dict[str, Any] = {
            "min_p": 0.05,
            "top_p": 0.9,
            "repetition_penalty": 0.6,
            "frequency_penalty": -0.5,
            "presence_penalty": 0.3,
            "logit_bias": {1: 4.0, 2: 3.0},
            "bad_words": ((1, 2),),
            "min_tokens": 12,
            "stop_token_ids": (5,),
            "logprobs": 2,
            "n": 2,
            "allowed_token_ids": (0, 1, 2, 3, 5),
        }
        for name in rng.sample(sorted(rare), 4):
            fields[name] = rare[name]
        prompt = stem * rng.randint(1, 3) + [i]
        requests.append(ask(f"r{i}", prompt, GenerationParams(**fields)))
    return requests


def texts(answers: Answers) -> dict[tuple[str, int], tuple[object, ...]]:
    return {key: answer.text for key, answer in answers.items()}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_no_depth_changes_a_text(size: EngineSize, method: str) -> None:
    requests = repetitive_requests()
    expected = texts(run_requests(mock_engine(size), requests))
    for depth in DEPTHS:
        engine = speculating_engine(size, method, depth)
        assert texts(run_requests(engine, requests)) == expected, depth
        assert texts(run_requests(engine, requests)) == expected, f"{depth}, warm"
        stats = engine.stats()
        assert stats.num_free_blocks == stats.num_total_blocks
        assert (stats.num_draft_tokens > 0) == (depth != "0")


def growing_requests() -> list[AddRequest]:
    """Short prompts and long answers of few tokens: a pool that holds all at first runs out."""
    params = [
        GenerationParams(
            max_tokens=60,
            seed=i,
            temperature=0.7,
            ignore_eos=True,
            logprobs=1,
            allowed_token_ids=(i, i + 1, i + 2),
        )
        for i in range(8)
    ]
    return [ask(f"r{i}", [i, i + 1, i + 2] * 2, params[i]) for i in range(8)]


@pytest.mark.parametrize("method", METHODS)
def test_preemption_changes_nothing(method: str) -> None:
    requests = growing_requests()
    expected = texts(run_requests(mock_engine(), requests))
    for depth in DEPTHS:
        engine = speculating_engine(EngineSize(num_blocks=24), method, depth)
        expect_short_outputs(engine)
        assert texts(run_requests(engine, requests)) == expected, depth
        stats = engine.stats()
        assert stats.num_preemptions > 0
        assert (0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens) == (depth != "0")


@pytest.mark.parametrize("method", METHODS)
def test_prefix_cache_hits_are_the_same(method: str) -> None:
    """One request after the other: how many are let in at once depends on when others end."""
    requests = repetitive_requests(20)
    hits = []
    for engine in (mock_engine(), speculating_engine(EngineSize(), method, "8")):
        run_alone(engine, requests)
        run_alone(engine, requests)
        hits.append(engine.stats().num_cached_prompt_tokens)
    assert hits[0] == hits[1] > 0


def test_drafts_are_counted_as_chosen() -> None:
    request = ask("a", [1, 2, 3] * 8, GenerationParams(max_tokens=40, seed=0, ignore_eos=True))
    size = EngineSize()
    executor = MockExecutor(size.kv_plan, VOCAB_SIZE)
    engine = Engine(make_parts(size, executor, VOCAB_SIZE, speculator_of("ngram", "3")))
    run_requests(engine, [request])
    stats = engine.stats()
    assert executor.num_tokens_computed == 24 + stats.num_draft_tokens + sum(stats.draft_depths) - 1
    assert stats.num_draft_tokens == sum(d * n for d, n in enumerate(stats.draft_depths))
    assert stats.num_accepted_draft_tokens == sum(stats.accepted_drafts)
    assert stats.num_generated_tokens == sum(stats.draft_depths) + sum(stats.accepted_drafts)


def test_requests_choose_for_themselves() -> None:
    engine = speculating_engine(EngineSize(), "ngram", "8")
    greedy: dict[str, Any] = {"max_tokens": 30, "seed": 0, "temperature": 0.0, "ignore_eos": True}
    off = GenerationParams(**greedy, speculative=Speculative(enabled=False))
    run_requests(engine, [ask("off", [1, 2, 3] * 8, off)])
    assert engine.stats().num_draft_tokens == 0
    two = GenerationParams(**greedy, speculative=Speculative(max_depth=2))
    run_requests(engine, [ask("two", [1, 2, 3] * 8, two)])
    assert engine.stats().num_draft_tokens > 0
    assert not any(engine.stats().draft_depths[3:])
    named = GenerationParams(**greedy, speculative=Speculative(method="ngram"))
    run_requests(engine, [ask("ngram", [1, 2, 3] * 8, named)])


@pytest.mark.parametrize(
    ("engine", "known"),
    [
        (mock_engine(), "none (see --spec-method)"),
        (speculating_engine(EngineSize(), "ngram", "auto"), "auto, ngram"),
    ],
    ids=["off", "ngram"],
)
def test_a_method_that_is_not_there_is_refused(engine: Engine, known: str) -> None:
    params = GenerationParams(max_tokens=3, seed=0, speculative=Speculative(method="suffix"))
    refused = engine.add_request(ask("a", [1], params))
    assert refused is not None
    assert refused.field == "speculative.method"
    assert refused.message == f"'suffix' is not a method of this server: {known}"
