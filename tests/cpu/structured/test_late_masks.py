"""Masks that are late, on every backend: sampling waits for them, at every verified row.

The grammar here names the one token that may follow, so the output shows whether a row saw its
mask. Drafts are right at times and wrong at others.
"""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest
from hasten.core.engine import Engine
from hasten.core.latency import StepShape
from hasten.core.params import GenerationParams
from hasten.core.protocols import MaskJob
from hasten.core.request import Request, RequestId
from hasten.kernels.dtypes import DType
from hasten.kernels.step import I32, U32

from tests.helpers.engines import ask, expect_short_outputs, make_parts, run_requests
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.workbench import Workbench

NUM_REQUESTS, NUM_TOKENS = 6, 60


def expected(request_name: str, position: int, vocab_size: int) -> int:
    """The token that has to be at this position of the output."""
    return random.Random(f"{request_name} {position}").randrange(vocab_size)


@dataclass(slots=True)
class LateGrammars:
    """Masks of one token each, written some milliseconds after they were asked for."""

    vocab_size: int

    def prepare(self, request: Request) -> None:
        """There is nothing to compile."""

    def is_ready(self, request_id: RequestId) -> bool:
        return bool(request_id)

    def wait(self, timeout_s: float) -> None:
        raise AssertionError(f"nothing to wait {timeout_s} s for")

    def failure(self, request_id: RequestId) -> str | None:
        return None if request_id else "no name"

    def begin_masks(self, jobs: Sequence[MaskJob], masks: U32, ready: I32) -> None:
        threading.Thread(target=self._write, args=(jobs, masks, ready)).start()

    def forget(self, request_id: RequestId) -> None:
        """Nothing is kept."""

    def _write(self, jobs: Sequence[MaskJob], masks: U32, ready: I32) -> None:
        masks[:] = 0
        time.sleep(0.003)
        for request, drafts, first_row in jobs:
            for i in range(len(drafts) + 1):
                position = request.num_output_tokens + i
                token_id = expected(request.group_id, position, self.vocab_size)
                masks[first_row + i, token_id // 32] = 1 << token_id % 32
        ready[0] = 1


@dataclass(slots=True)
class HalfRight:
    """Drafts of up to three tokens, each right with a probability of a half."""

    vocab_size: int
    methods: frozenset[str] = frozenset()
    gain: float = 1.0

    def speculate(
        self, requests: Sequence[Request], max_depths: Sequence[int], beside: StepShape
    ) -> list[list[int]]:
        assert beside is not None
        return [
            self._drafts(each)[:depth] for each, depth in zip(requests, max_depths, strict=True)
        ]

    def forget(self, request_id: RequestId) -> None:
        """Nothing is kept."""

    def _drafts(self, request: Request) -> list[int]:
        begin = request.num_output_tokens
        rng = random.Random(f"drafts {request.group_id} {begin}")
        return [
            expected(request.group_id, begin + i, self.vocab_size) if rng.random() < 0.5 else 0
            for i in range(3)
        ]


@pytest.mark.parametrize("num_blocks", [400, 14], ids=["roomy", "preempting"])
def test_every_row_sees_its_mask(kernels: str, num_blocks: int) -> None:
    bench = Workbench.make(
        random_model(tiny_config()), kernels, DType.F32, num_blocks=400, max_model_len=128
    )
    size = replace(bench.size, num_blocks=num_blocks)
    parts = make_parts(size, bench.executor, bench.vocab_size, HalfRight(bench.vocab_size))
    engine = Engine(replace(parts, grammars=LateGrammars(bench.vocab_size)))
    if num_blocks < 400:
        expect_short_outputs(engine)
    params = GenerationParams(max_tokens=NUM_TOKENS, seed=3, grammar="one way")
    greedy = msgspec.structs.replace(params, temperature=0.0)
    requests = [ask(f"r{i}", [1 + i] * 20, params if i else greedy) for i in range(NUM_REQUESTS)]
    answers = run_requests(engine, requests)
    for i in range(NUM_REQUESTS):
        name = f"r{i}"
        assert answers[name, 0].token_ids == [
            expected(name, position, bench.vocab_size) for position in range(NUM_TOKENS)
        ]
    assert engine.stats().num_accepted_draft_tokens > 0
    if num_blocks < 400:
        assert engine.stats().num_preemptions > 0
