"""One request, one text, with the whole engine on interpreted kernels.

A tiny model, a few requests, and every way in which the engine changes how they run: among others,
in chunks, from the prefix cache, with too little memory, with drafts. `tests/cpu/engine` has the
long version for the other backends.
"""

from __future__ import annotations

import pytest
from hasten.core.messages import AddRequest
from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType

from tests.helpers.engines import Answers, ask, run_alone, run_requests
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.speculators import ScriptedSpeculator, patchy
from tests.helpers.workbench import Workbench

VOCAB_SIZE = 64
PROMPT = [7, 3, 22, 41, 5, 5, 19, 60, 2, 33, 14, 9, 28, 50, 11, 36, 44]


@pytest.fixture(scope="module")
def bench() -> Workbench:
    model = random_model(tiny_config(vocab_size=VOCAB_SIZE, windows=(None,), qk_norm=True))
    return Workbench.make(
        model,
        "triton",
        DType.BF16,
        num_blocks=40,
        max_model_len=64,
        kv_dtype=DType.FP8_E4M3,
    )


def requests() -> list[AddRequest]:
    greedy = GenerationParams(max_tokens=2, seed=1, logprobs=1, ignore_eos=True)
    drawn = GenerationParams(
        max_tokens=2, seed=5, temperature=1.2, top_k=9, frequency_penalty=0.5, ignore_eos=True
    )
    return [ask("greedy", PROMPT, greedy), ask("drawn", [*PROMPT[:16], 1, 9], drawn)]


def texts(answers: Answers) -> dict[object, object]:
    return {key: answer.text for key, answer in answers.items()}


def test_one_request_one_text(bench: Workbench) -> None:
    together = bench.engine()
    expected = run_requests(together, requests())
    assert texts(run_requests(together, requests())) == texts(expected), "warm prefix cache"
    assert texts(run_alone(bench.engine(), requests())) == texts(expected), "alone"
    chunked = bench.engine(max_num_batched_tokens=16)
    assert texts(run_requests(chunked, requests())) == texts(expected), "chunks"
    script = patchy(VOCAB_SIZE, {key: a.token_ids for key, a in expected.items()}, seed=3)
    drafted = bench.engine(speculator=ScriptedSpeculator(script, max_depth=3))
    assert texts(run_requests(drafted, requests())) == texts(expected), "drafts"
