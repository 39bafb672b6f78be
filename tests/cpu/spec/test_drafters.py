"""Drafting with a model: lossless, and as good after a pause, a prefix hit or a preemption.

Exercised on every backend: `pytest tests/cpu/spec/test_drafters.py`.
"""

from __future__ import annotations

import random

import pytest
from hasten.core.loading import LoadedModel
from hasten.core.messages import AddRequest
from hasten.core.params import GenerationParams, Speculative
from hasten.core.request import Request, RequestId
from hasten.kernels.dtypes import DType
from hasten.spec.drafter import DrafterProposer
from hasten.spec.proposer import NO_DRAFT

from tests.helpers.drafting import (
    DraftingEngine,
    acceptance,
    draft_model,
    nudged,
    plain,
    speculation,
)
from tests.helpers.engines import Answers, ask, expect_short_outputs, run_alone, run_requests
from tests.helpers.random_models import random_model, tiny_config

F32 = DType.F32
TARGET = random_model(tiny_config())
NEAR = nudged(TARGET, 0.05)


def requests_of(count: int, max_tokens: int = 40, seed: int = 3) -> list[AddRequest]:
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        params = GenerationParams(
            max_tokens=max_tokens,
            seed=i,
            temperature=(0.0, 0.7, 1.0)[i % 3],
            logprobs=(None, 2)[i % 2],
            repetition_penalty=(1.0, 1.1)[i % 5 == 0],
            ignore_eos=True,
        )
        prompt = [rng.randrange(96) for _ in range(rng.randint(3, 60))]
        requests.append(ask(f"r{i}", prompt, params))
    return requests


def drafting(
    kernels: str,
    drafter: LoadedModel,
    depth: str = "auto",
    num_kv_bytes: int = 8 << 20,
    max_num_batched_tokens: int = 512,
) -> DraftingEngine:
    return DraftingEngine.make(
        TARGET,
        [draft_model(drafter, F32)],
        speculation("draft", depth),
        kernels,
        F32,
        num_kv_bytes=num_kv_bytes,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def assert_same(found: Answers, expected: Answers) -> None:
    assert {key: answer.text for key, answer in found.items()} == {
        key: answer.text for key, answer in expected.items()
    }


@pytest.mark.parametrize("depth", ["1", "3", "8", "auto"])
def test_lossless_and_mostly_right(kernels: str, depth: str) -> None:
    requests = requests_of(9)
    expected = run_requests(plain(TARGET, kernels, F32), requests)
    made = drafting(kernels, NEAR, depth)
    assert_same(run_requests(made.engine, requests), expected)
    assert acceptance(made) > 0.3
    stats = made.engine.stats()
    assert stats.num_free_blocks == stats.num_total_blocks


def test_the_model_itself_is_always_right_at_any_temperature(kernels: str) -> None:
    """The noise is shared: what the drafter samples is what the target would."""
    made = drafting(kernels, TARGET, "4")
    requests = [r for r in requests_of(9) if r.params.repetition_penalty == 1.0]
    run_requests(made.engine, requests)
    assert acceptance(made) > 0.97


def test_long_prompts_are_caught_up_with_in_chunks(kernels: str) -> None:
    rng = random.Random(4)
    params = GenerationParams(max_tokens=24, seed=1, temperature=0.0, ignore_eos=True)
    prompts = [[rng.randrange(96) for _ in range(280)] for _ in range(3)]
    requests = [ask(f"r{i}", prompt, params) for i, prompt in enumerate(prompts)]
    made = drafting(kernels, TARGET, "4", max_num_batched_tokens=100)
    assert_same(
        run_requests(made.engine, requests), run_requests(plain(TARGET, kernels, F32), requests)
    )
    assert acceptance(made) > 0.97


def test_catching_up_keeps_to_the_time_that_a_pass_may_take(kernels: str) -> None:
    """Passes of 1 s and 0.01 for each more token: of 1.3 s, 31 tokens, so a prompt takes ten."""
    made = drafting(kernels, TARGET, "4")
    drafter, blocks = made.drafters[0], made.engine._parts.blocks
    proposer = DrafterProposer(drafter, blocks, max_pass_s=1.3)
    params = GenerationParams(max_tokens=8, seed=0)
    request = Request(RequestId("r"), "r", tuple(range(90)) * 3, params, 0)
    blocks.admit(request, blocks.quote(request))
    assert blocks.extend(request.request_id, 270)
    num_calls = 1
    while proposer.propose([request], [2]) == [NO_DRAFT]:
        num_calls += 1
    assert num_calls == 9


def test_a_prefix_hit_is_worth_as_much_to_the_drafter(kernels: str) -> None:
    requests = requests_of(4, seed=5)
    again = [ask(f"again {r.request_id}", r.prompt_token_ids, r.params) for r in requests]
    made = drafting(kernels, NEAR, "4")
    run_alone(made.engine, requests)
    first = acceptance(made)
    answers = run_alone(made.engine, again)
    assert sum(answer.num_cached_tokens for answer in answers.values()) > 0
    assert acceptance(made) == pytest.approx(first, abs=1e-9), "both rounds accept the same"


def test_blocks_that_the_drafter_never_filled_are_caught_up_with(kernels: str) -> None:
    """The prefix was computed for a request that did not draft."""
    requests = requests_of(4, seed=5)
    made = drafting(kernels, NEAR, "4")
    run_alone(made.engine, requests)
    expected = acceptance(made)
    other = drafting(kernels, NEAR, "4")
    silent = Speculative(enabled=False)
    run_alone(
        other.engine,
        [
            ask(f"silent {r.request_id}", r.prompt_token_ids, _with(r.params, silent))
            for r in requests
        ],
    )
    assert other.engine.stats().num_draft_tokens == 0
    answers = run_alone(other.engine, requests)
    assert sum(answer.num_cached_tokens for answer in answers.values()) > 0
    assert acceptance(other) == pytest.approx(expected, abs=1e-9)


def test_lossless_while_requests_are_preempted(kernels: str) -> None:
    rng = random.Random(2)
    requests = [
        ask(
            f"r{i}",
            [rng.randrange(96) for _ in range(6)],
            GenerationParams(max_tokens=90, seed=i, temperature=0.7, ignore_eos=True),
        )
        for i in range(12)
    ]
    expected = run_requests(plain(TARGET, kernels, F32), requests)
    made = drafting(kernels, TARGET, "3", num_kv_bytes=1 << 20)
    expect_short_outputs(made.engine)
    before = made.engine.stats()
    assert_same(run_requests(made.engine, requests), expected)
    stats = made.engine.stats()
    assert stats.num_preemptions > 0
    num_drafted = stats.num_draft_tokens - before.num_draft_tokens
    num_accepted = stats.num_accepted_draft_tokens - before.num_accepted_draft_tokens
    assert num_accepted > 0.97 * num_drafted > 0


def test_samples_of_one_prompt_fork_the_drafters_blocks_too(kernels: str) -> None:
    params = GenerationParams(max_tokens=30, seed=1, temperature=0.9, n=3, ignore_eos=True)
    request = ask("r", list(range(40)), params)
    made = drafting(kernels, TARGET, "3")
    answers = run_requests(made.engine, [request])
    assert_same(answers, run_requests(plain(TARGET, kernels, F32), [request]))
    assert acceptance(made) > 0.97


def test_past_its_position_limit_a_request_is_not_drafted_for(kernels: str) -> None:
    params = GenerationParams(max_tokens=40, seed=1, temperature=0.0, ignore_eos=True)
    short, long = ask("short", range(10), params), ask("long", [5] * 90, params)
    model = draft_model(TARGET, F32, max_len=64)
    expected = run_requests(plain(TARGET, kernels, F32), [short, long])
    made = DraftingEngine.make(TARGET, [model], speculation("draft", "4"), kernels, F32)
    assert_same(run_requests(made.engine, [long]), {("long", 0): expected["long", 0]})
    assert made.engine.stats().num_draft_tokens == 0
    assert_same(run_requests(made.engine, [short]), {("short", 0): expected["short", 0]})
    assert made.engine.stats().num_accepted_draft_tokens > 20


def test_windows_of_the_drafter(kernels: str) -> None:
    drafter = random_model(tiny_config(windows=(8, None)))
    target = random_model(tiny_config(windows=(8, None)))
    model = draft_model(drafter, F32)
    made = DraftingEngine.make(target, [model], speculation("draft", "4"), kernels, F32)
    requests = [r for r in requests_of(6) if r.params.repetition_penalty == 1.0]
    assert_same(
        run_requests(made.engine, requests), run_requests(plain(target, kernels, F32), requests)
    )
    assert acceptance(made) > 0.97


def test_auto_takes_the_drafter_where_it_is_right_and_leaves_it_where_not(kernels: str) -> None:
    """Shares of drafts among the tokens, once it has been seen what the drafter is worth."""
    stranger = random_model(tiny_config(), seed=9)
    for drafter, low, high in ((TARGET, 0.8, 1.0), (stranger, 0.0, 0.35)):
        made = drafting(kernels, drafter)
        run_requests(made.engine, requests_of(6, max_tokens=60))
        before = made.engine.stats()
        run_requests(made.engine, requests_of(6, max_tokens=60, seed=4))
        stats = made.engine.stats()
        num_drafted = stats.num_draft_tokens - before.num_draft_tokens
        share = num_drafted / (stats.num_generated_tokens - before.num_generated_tokens)
        assert low <= share < high


def _with(params: GenerationParams, speculative: Speculative) -> GenerationParams:
    import msgspec

    return msgspec.structs.replace(params, speculative=speculative)
