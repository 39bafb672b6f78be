"""A head guesses as well after a long time as at first: round after round of the same chats.

Which positions are drafted for may follow what steps take, so shares of right guesses say which
positions were chosen. What is guessed at a position must never change: that is compared.

Seconds in CI; `HASTEN_SOAK_MINUTES=30` (`make soak`) goes on for so long, at each depth.
"""

from __future__ import annotations

import logging
import os
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from hasten.api.engine import build_engine
from hasten.api.spec_bench import prompts_of
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
from hasten.spec.drafter import DrafterProposer

from tests.helpers.engines import ask, run_alone, run_requests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.engine import Engine
    from hasten.core.request import Request
    from hasten.spec.proposer import Draft

logger = logging.getLogger(__name__)

MINUTES = float(os.environ.get("HASTEN_SOAK_MINUTES", "0.05"))
IS_LONG = MINUTES >= 1
NUM_CHATS, MAX_TOKENS = (24, 200) if IS_LONG else (4, 24)
KV_MIB = 600 if IS_LONG else 96
"""Nothing is evicted, so the cache is the same before all rounds but the first."""


class Guesses:
    """What a head guessed: for each chat and length of its text, the deepest draft so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deepest: dict[tuple[str, int], list[int]] = {}
        self.changed: list[tuple[str, int, list[int], list[int]]] = []
        self.num_drafts = 0
        propose = DrafterProposer.propose

        def proposing(
            drafter: DrafterProposer,
            requests: Sequence[Request],
            depths: Sequence[int],
            least_survival: float,
        ) -> list[Draft]:
            drafts = propose(drafter, requests, depths, least_survival)
            for request, draft in zip(requests, drafts, strict=True):
                if draft.token_ids:
                    self._take(request, list(draft.token_ids))
            return drafts

        monkeypatch.setattr(DrafterProposer, "propose", proposing)

    def _take(self, request: Request, draft: list[int]) -> None:
        self.num_drafts += 1
        position = (request.group_id, len(request.token_ids))
        before = self.deepest.setdefault(position, draft)
        depth = min(len(before), len(draft))
        if before[:depth] != draft[:depth]:
            self.changed.append((*position, before, draft))
        if len(draft) > len(before):
            self.deepest[position] = draft


def options_of(depth: str) -> EngineOptions:
    return EngineOptions(
        model=ModelOptions(max_model_len=1024),
        cache=CacheOptions(kv_cache_memory_bytes=KV_MIB << 20),
        execution=ExecutionOptions(kernels="cpu", num_threads=2 if IS_LONG else 1),
        speculation=SpeculationOptions("eagle", depth),
    )


def accepted(engine: Engine, prompts: list[list[int]], is_alone: bool) -> tuple[list[int], ...]:
    """A round's drafts by depth, and the tokens accepted by position."""
    before = engine.stats()
    params = GenerationParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.0, seed=1)
    requests = [ask(str(i), prompt, params) for i, prompt in enumerate(prompts)]
    (run_alone if is_alone else run_requests)(engine, requests)
    after = engine.stats()
    return (
        [n - m for n, m in zip(after.draft_depths, before.draft_depths, strict=True)],
        [n - m for n, m in zip(after.accepted_drafts, before.accepted_drafts, strict=True)],
    )


@pytest.mark.timeout(60 * MINUTES + 300)
@pytest.mark.parametrize("depth", ["2", "auto"])
def test_acceptance_does_not_drift(depth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a fixed depth with all chats at once; as deep as it pays for one after the other."""
    options = options_of(depth)
    try:
        engine = build_engine(options)
    except (ConfigurationError, LoadError) as error:
        pytest.skip(str(error))
    prompts = list(
        islice(prompts_of("chat", options, engine.ready_message().vocab_size), NUM_CHATS)
    )
    guesses = Guesses(monkeypatch)
    ends = monotonic() + MINUTES * 60
    rounds: list[tuple[list[int], ...]] = []
    while monotonic() < ends or len(rounds) < 3:
        rounds.append(accepted(engine, prompts, is_alone=depth == "auto"))
        assert not guesses.changed, f"round {len(rounds)}: {guesses.changed[0]}"
    assert guesses.num_drafts > len(guesses.deepest) > 0, "no position was drafted for twice"
    logger.info(
        "%d rounds, %d drafts at %d positions",
        len(rounds),
        guesses.num_drafts,
        len(guesses.deepest),
    )
    if depth == "2":
        # In the first round the head catches up with the prompts: some chats draft a step later.
        assert rounds[2:] == rounds[1:-1], "drafts of the same chats differ"
