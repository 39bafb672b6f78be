"""A head guesses as well after a long time as at first: round after round of the same chats.

Seconds in CI; `HASTEN_SOAK_MINUTES=30` (`make soak`) goes on for so long.
"""

from __future__ import annotations

import os
from itertools import islice
from time import monotonic

import pytest
from hasten.api.engine import build_engine
from hasten.api.spec_bench import prompts_of
from hasten.core.engine import Engine
from hasten.core.loading import LoadError
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SpeculationOptions,
)
from hasten.core.params import GenerationParams

from tests.helpers.engines import ask, run_requests

MINUTES = float(os.environ.get("HASTEN_SOAK_MINUTES", "0.05"))
IS_LONG = MINUTES >= 1
NUM_CHATS, MAX_TOKENS = (24, 200) if IS_LONG else (4, 24)
KV_MIB = 600 if IS_LONG else 96
"""Nothing is evicted, so the cache is the same before all rounds but the first."""
DRIFT = 0.02
"""Of the share of right first guesses, where the depth follows what steps take."""


def options_of(depth: str) -> EngineOptions:
    return EngineOptions(
        model=ModelOptions(max_model_len=1024),
        cache=CacheOptions(kv_cache_memory_bytes=KV_MIB << 20),
        execution=ExecutionOptions(kernels="cpu", num_threads=2 if IS_LONG else 1),
        speculation=SpeculationOptions("eagle", depth),
    )


def shares(engine: Engine, prompts: list[list[int]]) -> tuple[float, float, int]:
    """Shares of right first and second guesses of a round, and the number of first ones."""
    before = engine.stats()
    params = GenerationParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.0, seed=1)
    run_requests(engine, [ask(str(i), prompt, params) for i, prompt in enumerate(prompts)])
    after = engine.stats()
    depths = [n - m for n, m in zip(after.draft_depths, before.draft_depths, strict=True)]
    right = [n - m for n, m in zip(after.accepted_drafts, before.accepted_drafts, strict=True)]
    num_drafted, num_deeper = sum(depths[1:]), sum(depths[2:])
    return right[0] / max(num_drafted, 1), right[1] / max(num_deeper, 1), num_drafted


@pytest.mark.timeout(60 * MINUTES + 300)
@pytest.mark.parametrize("depth", ["2", "auto"])
def test_acceptance_does_not_drift(depth: str) -> None:
    options = options_of(depth)
    try:
        engine = build_engine(options)
    except (ConfigurationError, LoadError) as error:
        pytest.skip(str(error))
    vocab_size = engine.ready_message().vocab_size
    prompts = list(islice(prompts_of("chat", options, vocab_size), NUM_CHATS))
    ends = monotonic() + MINUTES * 60 / 2
    rounds = [shares(engine, prompts)]
    while monotonic() < ends or len(rounds) < 3:
        rounds.append(shares(engine, prompts))
    if depth == "2":
        # In the first round a head catches up with the prompts: some chats draft a step later.
        assert rounds[2:] == rounds[1:-1], "drafts of the same chats differ"
        assert rounds[0][2] > 0
        return
    third = len(rounds) // 3
    first, last = rounds[:third], rounds[-third:]
    drafted = [max(sum(each[2] for each in part), 1) for part in (first, last)]
    right = [sum(each[0] * each[2] for each in part) for part in (first, last)]
    if IS_LONG:
        assert abs(right[0] / drafted[0] - right[1] / drafted[1]) < DRIFT, rounds
