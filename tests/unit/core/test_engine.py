"""The engine over the mock model: every answer equals naive generation, whatever runs beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hasten.core.engine import Engine
from hasten.core.latency import ItlBudget, StepTimeModel
from hasten.core.messages import AddRequest
from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType
from hasten.kernels.program import KVGroupSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import (
    FULL,
    VOCAB_SIZE,
    Answers,
    EngineSize,
    ask,
    collect,
    expect_short_outputs,
    finish_all,
    make_parts,
    mock_engine,
    run_alone,
    run_requests,
)
from tests.helpers.mock_model import MockExecutor
from tests.helpers.naive_generation import generate_all
from tests.helpers.speculators import Script, ScriptedSpeculator, patchy, perfect, wrong

MODEL = MockExecutor(EngineSize().kv_plan, VOCAB_SIZE)
TOKENS = st.integers(0, VOCAB_SIZE - 1)


@st.composite
def generation_params(draw: st.DrawFn) -> GenerationParams:
    """Every parameter now and then, most requests with few of them."""
    fields: dict[str, Any] = {
        "max_tokens": draw(st.integers(1, 24)),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "temperature": draw(st.sampled_from((0.0, 0.7, 1.0, 2.0))),
        "eos_token_ids": (0,),
    }
    rare: dict[str, st.SearchStrategy[Any]] = {
        "top_k": st.integers(1, 10),
        "top_p": st.floats(0.1, 0.99),
        "min_p": st.floats(0.01, 0.5),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.5, 2),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-10, 10), max_size=4),
        # So few that some of the tokens that are allowed are left.
        "bad_words": st.lists(st.lists(TOKENS, min_size=1, max_size=2).map(tuple), max_size=12).map(
            tuple
        ),
        "allowed_token_ids": st.lists(TOKENS, min_size=20, max_size=50, unique=True).map(tuple),
        "min_tokens": st.integers(0, fields["max_tokens"]),
        "stop_token_ids": st.lists(TOKENS, max_size=3).map(tuple),
        "ignore_eos": st.just(True),
        "n": st.integers(2, 4),
        "logprobs": st.integers(0, 3),
        "prompt_logprobs": st.integers(0, 3),
    }
    for name in draw(st.sets(st.sampled_from(sorted(rare)), max_size=5)):
        fields[name] = draw(rare[name])
    return GenerationParams(**fields)


@st.composite
def request_lists(draw: st.DrawFn) -> list[AddRequest]:
    """Requests some of which share prefixes."""
    stem = draw(st.lists(TOKENS, min_size=40, max_size=40))
    requests = []
    for i in range(draw(st.integers(1, 8))):
        prompt = stem[: draw(st.integers(1, 40))] + draw(st.lists(TOKENS, max_size=20))
        requests.append(ask(f"r{i}", prompt, draw(generation_params())))
    return requests


def naive_answers(requests: Sequence[AddRequest]) -> Answers:
    return {
        (request.request_id, idx): answer
        for request in requests
        for idx, answer in enumerate(generate_all(MODEL, request))
    }


def assert_same(found: Answers, expected: Answers) -> None:
    assert found.keys() == expected.keys()
    for key, answer in expected.items():
        assert found[key].text == answer.text, key


SIZES = [
    EngineSize(),
    EngineSize(max_num_batched_tokens=16, enable_prefix_caching=False),
    EngineSize(num_blocks=26, block_size=8, max_model_len=96),
    EngineSize(
        block_size=8,
        groups=(FULL, KVGroupSpec(1, 1, 8, DType.F32, window=12)),
        max_num_batched_tokens=24,
    ),
]


@pytest.mark.parametrize("size", SIZES, ids=["plain", "chunked", "tight", "windowed"])
@settings(max_examples=15, deadline=None)
@given(requests=request_lists())
def test_the_engine_answers_like_naive_generation(
    size: EngineSize, requests: list[AddRequest]
) -> None:
    expected = naive_answers(requests)
    engine = mock_engine(size)
    assert_same(run_requests(engine, requests), expected)
    assert_same(run_requests(engine, requests), expected)  # again, with a warm cache
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


@pytest.mark.parametrize("size", SIZES, ids=["plain", "chunked", "tight", "windowed"])
@pytest.mark.parametrize("script", ["perfect", "wrong", "patchy", "random"])
@settings(max_examples=6, deadline=None)
@given(requests=request_lists(), seed=st.integers(0, 1000))
def test_no_draft_changes_a_token(
    size: EngineSize, script: str, requests: list[AddRequest], seed: int
) -> None:
    expected = naive_answers(requests)
    texts = {key: answer.token_ids for key, answer in expected.items()}
    rng = random.Random(seed)
    scripts: dict[str, Script] = {
        "perfect": perfect(texts),
        "wrong": wrong(VOCAB_SIZE, texts),
        "patchy": patchy(VOCAB_SIZE, texts, seed),
        "random": lambda _, depth: [rng.randrange(VOCAB_SIZE) for _ in range(depth)],
    }
    engine = mock_engine(size, ScriptedSpeculator(scripts[script], seed))
    assert_same(run_requests(engine, requests), expected)
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


def greedy(max_tokens: int, **fields: Any) -> GenerationParams:
    return GenerationParams(max_tokens=max_tokens, seed=0, temperature=0.0, **fields)


def test_right_drafts_save_steps() -> None:
    request = ask("a", [1, 2, 3], greedy(40))
    texts = {("a", 0): run_alone(mock_engine(), [request])["a", 0].token_ids}
    plain = mock_engine()
    run_requests(plain, [request])
    drafted = mock_engine(speculator=ScriptedSpeculator(perfect(texts), max_depth=8))
    run_requests(drafted, [request])
    assert drafted.stats().num_steps < plain.stats().num_steps / 2


def test_a_speculator_is_told_of_every_end() -> None:
    speculator = ScriptedSpeculator(lambda *_: [])
    engine = mock_engine(speculator=speculator)
    engine.add_request(ask("b", [1], greedy(50)))
    engine.add_request(ask("a", [1, 2], greedy(3, n=2)))
    for _ in range(5):
        engine.step()
    engine.abort(["b"])
    assert sorted(speculator.forgotten) == ["a/0", "a/1", "b/0"]
    assert not engine.has_work


def test_a_tight_pool_really_preempts() -> None:
    size = EngineSize(num_blocks=26, block_size=8, max_model_len=96)
    engine = mock_engine(size)
    expect_short_outputs(engine)
    requests = [ask(f"r{i}", [i, *range(20)], greedy(60, ignore_eos=True)) for i in range(8)]
    assert_same(run_requests(engine, requests), naive_answers(requests))
    assert engine.stats().num_preemptions > 0


def test_recomputed_tokens_are_counted_as_they_occur() -> None:
    """How few they are is shown by `test_scheduler_simulation.py`."""
    size = EngineSize(num_blocks=40, max_model_len=160, enable_prefix_caching=False)
    executor = MockExecutor(size.kv_plan, VOCAB_SIZE)
    engine = Engine(make_parts(size, executor))
    expect_short_outputs(engine)
    num_before = executor.num_tokens_computed
    requests = [ask(f"r{i}", [i] * 20, greedy(60, ignore_eos=True)) for i in range(8)]
    run_requests(engine, requests)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    num_computed = executor.num_tokens_computed - num_before
    assert num_computed == 8 * (20 + 60 - 1) + stats.num_recomputed_tokens


def test_a_target_latency_cuts_prompts_while_others_decode() -> None:
    """With a step-time model that charges a millisecond a token."""
    model = StepTimeModel()
    model.body.set(1000, 1.0)
    size = EngineSize(max_num_batched_tokens=128)
    executor = MockExecutor(size.kv_plan, VOCAB_SIZE)
    budget = ItlBudget(model, target_s=0.030, min_chunk=8)
    engine = Engine(make_parts(size, executor, VOCAB_SIZE, budget=budget))
    requests = [
        ask("decoding", [1] * 100, greedy(20, ignore_eos=True)),
        ask("long", [2] * 200, greedy(4, ignore_eos=True)),
    ]
    expected = naive_answers(requests)
    answers: Answers = {}
    engine.add_request(requests[0])
    collect(answers, engine.step())
    engine.add_request(requests[1])
    finish_all(engine, answers)
    assert_same(answers, expected)
    sizes = [batch.num_tokens for batch in executor.batches]
    assert sizes[0] == 100
    assert max(sizes[1:]) == 30


def test_cached_tokens_are_reported_once_and_survive_preemption() -> None:
    engine = mock_engine()
    prompt = list(range(40))
    first = run_requests(engine, [ask("a", prompt, greedy(4))])
    again = run_requests(engine, [ask("b", prompt, greedy(4))])
    assert first["a", 0].num_cached_tokens == 0
    assert again["b", 0].num_cached_tokens == 32
    assert engine.stats().num_cached_prompt_tokens == 32


def test_samples_of_a_request_share_its_prompt() -> None:
    engine = mock_engine(EngineSize(enable_prefix_caching=False))
    params = GenerationParams(max_tokens=2, seed=5, n=4)
    answers = run_requests(engine, [ask("a", list(range(50)), params)])
    assert len({tuple(answer.token_ids) for answer in answers.values()}) > 1
    executor = engine._executor
    assert isinstance(executor, MockExecutor)
    assert executor.num_tokens_computed == 50 + 3 * 1 + 4 * 1


REFUSED = [
    ([], greedy(4), "prompt", "holds no token"),
    ([1, 64], greedy(4), "prompt", "token id 64 is outside the vocabulary of 64"),
    ([1, -1], greedy(4), "prompt", "token id -1"),
    ([1] * 256, greedy(1), "prompt", "the prompt has 256 tokens"),
    ([1] * 250, greedy(7), "max_tokens", "ask for at most 6"),
    ([1], greedy(4, logit_bias={99: 1.0}), "logit_bias", "token id 99"),
    ([1], greedy(4, allowed_token_ids=(1, 70)), "allowed_token_ids", "token id 70"),
    ([1], greedy(4, bad_words=((1, 80),)), "bad_words", "token id 80"),
    ([1], greedy(4, min_tokens=1, stop_token_ids=(90,)), "stop_token_ids", "token id 90"),
]


@pytest.mark.parametrize(("prompt", "params", "field", "message"), REFUSED)
def test_a_request_that_cannot_run_is_refused_with_the_numbers(
    prompt: list[int], params: GenerationParams, field: str, message: str
) -> None:
    engine = mock_engine()
    refused = engine.add_request(ask("a", prompt, params))
    assert refused is not None
    assert refused.request_id == "a"
    assert refused.field == field
    assert message in refused.message
    assert not engine.has_work


def test_the_longest_request_that_fits_runs() -> None:
    engine = mock_engine()
    answers = run_requests(engine, [ask("a", [1] * 200, greedy(56, ignore_eos=True))])
    assert len(answers["a", 0].token_ids) == 56


def test_a_request_larger_than_the_pool_is_refused_and_others_go_on() -> None:
    engine = mock_engine(EngineSize(num_blocks=9, block_size=8, max_model_len=256))
    refused = engine.add_request(ask("big", [1] * 100, greedy(10)))
    assert refused is not None
    assert "14 KV cache blocks" in refused.message
    assert len(run_requests(engine, [ask("small", [1] * 20, greedy(4))])["small", 0].token_ids) == 4


def test_an_id_in_use_is_refused() -> None:
    engine = mock_engine()
    assert engine.add_request(ask("a", [1], greedy(4))) is None
    refused = engine.add_request(ask("a", [1], greedy(4)))
    assert refused is not None
    assert refused.field == "request_id"
    finish_all(engine, {})
    assert engine.add_request(ask("a", [1], greedy(4))) is None


def test_one_sample_can_be_aborted_and_the_others_go_on() -> None:
    engine = mock_engine()
    params = GenerationParams(max_tokens=10, seed=3, n=3)
    request = ask("a", [1, 2, 3], params)
    answers: Answers = {}
    engine.add_request(request)
    collect(answers, engine.step())
    collect(answers, engine.step())
    engine.abort(["a"], sample_idx=1)
    finish_all(engine, answers)
    expected = naive_answers([request])
    for idx in (0, 2):
        assert answers["a", idx].text == expected["a", idx].text
    assert answers.get(("a", 1)) is None or answers["a", 1].finish_reason is None


def test_abort_all_reports_every_open_sample() -> None:
    engine = mock_engine()
    engine.add_request(ask("a", [1, 2], GenerationParams(max_tokens=10, seed=3, n=2)))
    engine.add_request(ask("b", [1, 2], greedy(10)))
    engine.step()
    outputs = engine.abort_all()
    assert sorted((o.request_id, o.sample_idx) for o in outputs) == [("a", 0), ("a", 1), ("b", 0)]
    assert {o.finish_reason for o in outputs} == {"abort"}
    assert not engine.has_work
    assert engine.step() == []


@settings(max_examples=15, deadline=None)
@given(requests=request_lists(), seed=st.integers(0, 1000))
def test_random_aborts_give_every_block_back(requests: list[AddRequest], seed: int) -> None:
    rng = random.Random(seed)
    engine = mock_engine(EngineSize(num_blocks=40, block_size=8, max_model_len=96))
    start = engine.stats().num_free_blocks
    expected = naive_answers(requests)
    answers: Answers = {}
    waiting = list(requests)
    aborted: set[str] = set()
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.5:
            assert engine.add_request(waiting.pop()) is None
        collect(answers, engine.step())
        if rng.random() < 0.3:
            victim = rng.choice(requests).request_id
            engine.abort([victim, "unknown"])
            aborted.add(victim)
    assert engine.stats().num_free_blocks == start
    for key, answer in expected.items():
        if key[0] not in aborted:
            assert answers[key].text == answer.text


def test_a_step_without_work_does_nothing() -> None:
    engine = mock_engine()
    assert not engine.has_work
    assert engine.step() == []
    assert engine.stats().num_steps == 0


def test_timings_cover_every_part_of_a_step() -> None:
    engine = mock_engine()
    run_requests(engine, [ask("a", [1, 2], greedy(5, ignore_eos=True))])
    timings = engine.timings
    assert timings.num_steps == 5
    assert min(timings.schedule_ns, timings.prepare_ns, timings.model_ns, timings.update_ns) > 0
    timings.reset()
    assert timings.num_steps == timings.model_ns == 0
