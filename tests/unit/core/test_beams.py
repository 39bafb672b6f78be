"""Beam search over the mock model: always what the naive search finds, whatever runs beside it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.engine import Engine
from hasten.core.messages import AddRequest
from hasten.core.params import Beam, GenerationParams, InvalidParameterError
from hasten.core.request import FinishReason
from hasten.kernels.dtypes import DType
from hasten.kernels.program import KVGroupSpec
from hasten.kernels.step import StepBatch, StepResult
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.engines import (
    FULL,
    VOCAB_SIZE,
    Answer,
    Answers,
    EngineSize,
    ask,
    collect,
    expect_short_outputs,
    finish_all,
    make_parts,
    mock_engine,
    run_requests,
)
from tests.helpers.mock_model import MockExecutor, logits_after
from tests.helpers.naive_beams import Found, search
from tests.helpers.naive_generation import generate_all
from tests.helpers.speculators import ScriptedSpeculator

MODEL = MockExecutor(EngineSize().kv_plan, VOCAB_SIZE)


def logprobs_after(tokens: tuple[int, ...]) -> npt.NDArray[np.float64]:
    logits = logits_after(tokens, MODEL)
    logprobs: npt.NDArray[np.float64] = logits - np.logaddexp.reduce(logits)
    return logprobs


def beams(width: int, n: int = 1, max_tokens: int = 8, **fields: Any) -> GenerationParams:
    """`fields` are those of `Beam`, and others of the request."""
    beam = {name: fields.pop(name) for name in Beam.__struct_fields__ if name in fields}
    return GenerationParams(
        max_tokens=max_tokens, seed=0, n=n, beam=Beam(width=width, **beam), **fields
    )


def found_in(answers: Mapping[tuple[str, int], Answer], request: AddRequest) -> list[Found]:
    """What an engine found that was asked for log-probabilities too."""
    answered = [answers[request.request_id, idx] for idx in range(request.params.n)]
    return [
        Found(
            answer.token_ids,
            # Not `sum`, which newer Pythons round otherwise.
            reduce(add, (entry.token_logprob for entry in answer.logprobs), 0.0),
            str(answer.finish_reason),
        )
        for answer in answered
    ]


def assert_found(answers: Answers, request: AddRequest) -> None:
    expected = search(logprobs_after, request.prompt_token_ids, request.params)
    assert found_in(answers, request) == expected, request


def random_beams(rng: random.Random) -> GenerationParams:
    width = rng.choice([1, 2, 3, 4, 10])
    return beams(
        width,
        n=rng.randint(1, width),
        max_tokens=rng.choice([1, 2, 5, 12]),
        length_penalty=rng.choice([1.0, 1.0, 0.0, 0.5, 2.0, -1.0]),
        early_stopping=rng.choice([False, True, "never"]),
        # Of 64 tokens, so many that outputs end everywhere.
        eos_token_ids=tuple(rng.sample(range(VOCAB_SIZE), rng.choice([0, 1, 4, 12]))),
        stop_token_ids=(rng.randrange(VOCAB_SIZE),),
        ignore_eos=rng.random() < 0.1,
        logprobs=rng.choice([0, 3]),
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1))
def test_the_engine_finds_what_the_naive_search_finds(seed: int, prompt: list[int]) -> None:
    request = ask("a", prompt, random_beams(random.Random(seed)))
    assert_found(run_requests(mock_engine(), [request]), request)


def random_size(rng: random.Random) -> EngineSize:
    """Small, with room for the largest single request and little more."""
    return EngineSize(
        num_blocks=rng.randrange(9, 40),
        block_size=rng.choice([4, 8]),
        max_model_len=32,
        max_num_seqs=rng.choice([1, 2, 4, 8]),
        max_num_batched_tokens=rng.choice([8, 16, 64]),
        enable_prefix_caching=rng.random() < 0.6,
        policy=rng.choice(["fcfs", "priority", "fair"]),
        groups=rng.choice([(FULL,), (FULL, KVGroupSpec(1, 1, 8, DType.F32, window=6))]),
    )


def random_requests(rng: random.Random) -> list[AddRequest]:
    """Beam searches among others, over prompts that share prefixes."""
    stem = [rng.randrange(VOCAB_SIZE) for _ in range(14)]
    requests = []
    for i in range(rng.randint(1, 6)):
        prompt = stem[: rng.randrange(14)] + [rng.randrange(VOCAB_SIZE) for _ in range(3)]
        plain = GenerationParams(
            max_tokens=rng.randint(1, 12), seed=i, n=rng.choice([1, 1, 3]), eos_token_ids=(7,)
        )
        params = random_beams(rng) if rng.random() < 0.6 else plain
        requests.append(ask(f"r{i}", prompt, params, priority=rng.randrange(3)))
    return requests


def serve(rng: random.Random) -> Engine:
    """Serve a random workload with arrivals and aborts on the way, and check every answer."""
    engine = mock_engine(random_size(rng), ScriptedSpeculator(lambda *_: [1, 2], seed=1))
    if rng.random() < 0.5:
        expect_short_outputs(engine, count=30)  # it lets in more than fits
    blocks = engine._parts.blocks
    requests = random_requests(rng)
    waiting, aborted, answers = list(requests), set[str](), Answers()
    abort_rate = rng.choice([0.0, 0.0, 0.1])
    for _ in range(3000):
        if not waiting and not engine.has_work:
            break
        if waiting and rng.random() < 0.4:
            assert engine.add_request(waiting.pop(0)) is None
        if rng.random() < abort_rate:
            victim = rng.choice(requests).request_id
            engine.abort([victim])
            aborted.add(victim)
        collect(answers, engine.step())
        blocks.check_integrity()
    assert not engine.has_work
    assert blocks.num_free_blocks == blocks.num_usable_blocks
    assert not engine._scheduler.requests
    assert not engine._scheduler.waiting
    for request in requests:
        if request.request_id in aborted:
            continue
        if request.params.beam is not None:
            assert_found(answers, request)
        else:
            for idx, answer in enumerate(generate_all(MODEL, request)):
                assert answers[request.request_id, idx].text == answer.text
    return engine


def test_whatever_runs_beside_a_search_it_finds_the_same() -> None:
    """Chunks, caches, windows, priorities, drafts of others, aborts, too few seats and blocks."""
    num_preemptions = 0
    for seed in range(300):
        num_preemptions += serve(random.Random(seed)).stats().num_preemptions
    assert num_preemptions > 500  # otherwise it would prove little


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_hypotheses_take_turns_where_seats_are_few(max_num_seqs: int) -> None:
    engine = mock_engine(EngineSize(max_num_seqs=max_num_seqs))
    requests = [ask(name, [1, 2, 3], beams(4, n=4, logprobs=0)) for name in "ab"]
    answers = run_requests(engine, requests)
    for request in requests:
        assert_found(answers, request)


def test_a_search_that_fills_the_context() -> None:
    """As long as the model allows, in a pool that holds one such sequence and no more."""
    size = EngineSize(num_blocks=5, block_size=8, max_model_len=32, enable_prefix_caching=False)
    engine = mock_engine(size)
    request = ask("a", list(range(20)), beams(4, n=4, max_tokens=12, logprobs=0))
    assert_found(run_requests(engine, [request]), request)
    assert engine.stats().num_preemptions > 0


def test_hypotheses_share_what_they_have_in_common() -> None:
    """After the prompt, a search computes one token for each hypothesis and step."""
    size = EngineSize(enable_prefix_caching=False)
    executor = MockExecutor(size.kv_plan, VOCAB_SIZE)
    engine = Engine(make_parts(size, executor))
    run_requests(engine, [ask("a", list(range(50)), beams(4, max_tokens=10))])
    assert executor.num_tokens_computed == 50 + 9 * 4
    assert engine.stats().num_steps == 10


def test_nothing_of_a_search_is_drafted() -> None:
    asked: list[str] = []

    def script(request: Any, depth: int) -> list[int]:
        asked.append(request.group_id)
        return []

    engine = mock_engine(speculator=ScriptedSpeculator(script))
    sampled = GenerationParams(max_tokens=20, seed=0, ignore_eos=True)
    run_requests(engine, [ask("beams", [1], beams(3)), ask("plain", [1], sampled)])
    assert set(asked) == {"plain"}


def test_log_probabilities_are_those_of_the_path() -> None:
    request = ask("a", [5, 6], beams(3, n=2, max_tokens=4, logprobs=2))
    answers = run_requests(mock_engine(), [request])
    for answer in answers.values():
        tokens = [5, 6]
        for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
            expected = logprobs_after(tuple(tokens))
            assert entry.token_logprob == np.float32(expected[token])
            assert entry.top_token_ids == np.argsort(-expected, kind="stable")[:2].tolist()
            tokens.append(token)
    without = run_requests(mock_engine(), [ask("a", [5, 6], beams(3, n=2, max_tokens=4))])
    assert [a.token_ids for a in without.values()] == [a.token_ids for a in answers.values()]
    assert not any(answer.logprobs for answer in without.values())


def test_the_prompt_of_a_search_is_scored_as_any() -> None:
    plain = ask("a", [5, 6, 7], GenerationParams(max_tokens=1, seed=0, prompt_logprobs=2))
    scored = ask("b", [5, 6, 7], beams(3, n=2, prompt_logprobs=2))
    answers = run_requests(mock_engine(), [plain, scored])
    assert answers["b", 0].prompt_logprobs == answers["a", 0].prompt_logprobs
    assert answers["b", 1].prompt_logprobs is None


def test_a_search_reports_what_the_cache_spared() -> None:
    engine = mock_engine()
    request = ask("a", list(range(40)), beams(3))
    assert run_requests(engine, [request])["a", 0].num_cached_tokens == 0
    assert run_requests(engine, [request])["a", 0].num_cached_tokens == 32
    stats = engine.stats()
    assert (stats.num_generated_tokens, stats.num_cached_prompt_tokens) == (16, 32)


def begun(*requests: AddRequest) -> Engine:
    engine = mock_engine()
    for request in requests:
        assert engine.add_request(request) is None
    for _ in range(4):
        engine.step()
    return engine


def test_a_search_that_is_cut_off_says_so_for_every_sample() -> None:
    engine = begun(ask("a", [1, 2], beams(4, n=3)), ask("b", [3], beams(2, n=2)))
    outputs = engine.abort_all()
    expected = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert sorted((o.request_id, o.sample_idx) for o in outputs) == expected
    assert {o.finish_reason for o in outputs} == {FinishReason.ABORT.value}
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.stats().num_total_blocks


def test_samples_of_a_search_do_not_end_apart() -> None:
    request = ask("a", [1, 2], beams(4, n=3, logprobs=0))
    engine, answers = begun(request), Answers()
    engine.abort(["a"], sample_idx=1)
    finish_all(engine, answers)
    assert_found(answers, request)


class BrokenFor(MockExecutor):
    """Meets a NaN whenever a sequence that begins with token 9 gets longer than 6."""

    def execute(self, batch: StepBatch) -> StepResult:
        result = super().execute(batch)
        for request, length in enumerate(batch.seq_lens.tolist()):
            if length > 6 and self._history(batch, request, 0) == (9,):
                raise FloatingPointError("NaN")
        return result


def test_a_search_whose_numbers_break_ends_and_others_go_on() -> None:
    size = EngineSize()
    engine = Engine(make_parts(size, BrokenFor(size.kv_plan, VOCAB_SIZE)))
    sound = ask("sound", [1, 2], beams(4, n=3, logprobs=0))
    answers = run_requests(engine, [ask("broken", [9, 2], beams(4, n=2)), sound])
    assert [answers["broken", idx].finish_reason for idx in range(2)] == ["error"] * 2
    assert_found(answers, sound)
    assert engine.stats().num_free_blocks == engine.stats().num_total_blocks


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"width": 11}, "beam.width"),
    ({"width": 0}, "beam.width"),
    ({"width": 2, "n": 3}, "n"),
    ({"width": 2, "length_penalty": float("nan")}, "beam.length_penalty"),
    ({"width": 2, "length_penalty": 11.0}, "beam.length_penalty"),
    ({"width": 2, "early_stopping": "soon"}, "beam.early_stopping"),
    ({"width": 2, "temperature": 0.5}, "temperature"),
    ({"width": 2, "top_k": 5}, "top_k"),
    ({"width": 2, "logit_bias": {1: 1.0}}, "logit_bias"),
    ({"width": 2, "repetition_penalty": 1.1}, "repetition_penalty"),
    ({"width": 2, "min_tokens": 1}, "min_tokens"),
    ({"width": 2, "grammar": "x"}, "beam"),
]


@pytest.mark.parametrize(("fields", "at_fault"), REFUSED)
def test_what_a_search_cannot_honour_is_refused(fields: dict[str, Any], at_fault: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        beams(**fields)
    assert caught.value.field == at_fault


def test_a_vocabulary_too_small_for_the_width_is_refused() -> None:
    size = EngineSize()
    engine = Engine(make_parts(size, MockExecutor(size.kv_plan, 7), vocab_size=7))
    refused = engine.add_request(ask("a", [1], beams(4)))
    assert refused is not None
    assert refused.field == "beam.width"
    assert len(run_requests(engine, [ask("a", [1], beams(3, n=3, max_tokens=1))])) == 3


def lengths(requests: Sequence[GenerationParams]) -> list[int]:
    """Of the best answer to each."""
    asked = [ask(f"r{i}", [3, 1, 4], params) for i, params in enumerate(requests)]
    answers = run_requests(mock_engine(), asked)
    return [len(answers[request.request_id, 0].token_ids) for request in asked]


def test_the_length_penalty_prefers_lengths() -> None:
    enders = tuple(range(8))
    by_penalty = [
        beams(4, max_tokens=16, length_penalty=p, early_stopping="never", eos_token_ids=enders)
        for p in (-2.0, 0.0, 2.0)
    ]
    short, plain, long = lengths(by_penalty)
    assert short <= plain <= long
    assert short < long
