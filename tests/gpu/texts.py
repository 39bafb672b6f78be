"""One request, one text, through the whole engine: alone, together, in chunks, from the cache, with
too little memory, with drafts; and the same with graphs as without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType

from tests.gpu.models import TINY, seeded_model
from tests.gpu.setting import Row, Setting
from tests.helpers.engines import Answers, ask, expect_short_outputs, run_alone, run_requests
from tests.helpers.speculators import ScriptedSpeculator, patchy
from tests.helpers.workbench import Workbench

if TYPE_CHECKING:
    from hasten.core.engine import Engine
    from hasten.core.messages import AddRequest

KINDS = {
    "bf16": ("bf16", DType.BF16),
    "fp8 cache": ("bf16", DType.FP8_E4M3),
    "int4": ("int4", DType.BF16),
    "fp8": ("fp8", DType.FP8_E4M3),
}
"""Scheme of the weights and dtype of the cache."""


def check_texts(setting: Setting, kind: str) -> Iterator[Row]:
    """One row per scenario."""
    scheme, kv_dtype = KINDS[kind]
    config = replace(TINY, num_layers=1, windows=(None,)) if setting.is_tiny else TINY
    model = seeded_model(config, scheme, kv_dtype)
    bench = Workbench.over(
        setting.backend(), model.program, model.weights, num_blocks=400, max_model_len=256
    )
    requests = _requests(setting, TINY.vocab_size)
    together = bench.engine()
    expected = run_requests(together, requests)
    yield _compared(kind, "warm prefix cache", run_requests(together, requests), expected)
    for name, answers, note in _scenarios(setting, bench, requests, expected):
        yield _compared(kind, name, answers, expected) | note


def _compared(kind: str, scenario: str, answers: Answers, expected: Answers) -> Row:
    wrong = [key for key, answer in answers.items() if answer.text != expected[key].text]
    return {"model": kind, "scenario": scenario, "ok": not wrong, "wrong": repr(wrong[:3])}


def _scenarios(
    setting: Setting, bench: Workbench, requests: list[AddRequest], expected: Answers
) -> Iterator[tuple[str, Answers, Row]]:
    yield "alone", run_alone(bench.engine(), requests[: 1 if setting.is_tiny else 4]), {}
    chunked = bench.engine(max_num_batched_tokens=16, enable_prefix_caching=False)
    yield "chunks of 16", run_requests(chunked, requests), {}
    tight = overbooked(setting, bench, requests)
    yield "preempted", run_requests(tight, requests), {"preemptions": tight.stats().num_preemptions}
    script = patchy(bench.vocab_size, {key: a.token_ids for key, a in expected.items()}, seed=3)
    speculator = ScriptedSpeculator(script, max_depth=6)
    yield "drafts", run_requests(bench.engine(speculator=speculator), requests), {}


def overbooked(setting: Setting, bench: Workbench, requests: list[AddRequest]) -> Engine:
    """A pool below demand, and an engine that expects shorter outputs than are asked for."""
    total, largest = bench.demand(requests)
    share = 0.9 if setting.is_tiny else 0.6
    num_blocks = 1 + max(largest, int(share * total))
    engine = bench.engine(num_blocks=num_blocks, max_num_batched_tokens=64)
    expect_short_outputs(engine, 32 if setting.is_tiny else 100)
    return engine


def _requests(setting: Setting, vocab_size: int) -> list[AddRequest]:
    """Prompts with a common beginning, greedy and drawn, with and without log-probabilities."""
    count, shared_len, max_tokens = (3, 13, 4) if setting.is_tiny else (12, 17, 24)
    requests = []
    for i in range(count):
        prompt = [(7 * at + 3) % vocab_size for at in range(shared_len)] + [i + 1] * (1 + i)
        params = GenerationParams(
            max_tokens=max_tokens,
            seed=i,
            temperature=(0.0, 1.0, 1.3)[i % 3],
            top_k=(0, 20, 0)[i % 3],
            top_p=(1.0, 1.0, 0.9)[i % 3],
            frequency_penalty=0.5 * (i % 4 == 3),
            logprobs=2 if i % 2 else None,
            ignore_eos=True,
        )
        requests.append(ask(f"r{i}", prompt, params))
    return requests
