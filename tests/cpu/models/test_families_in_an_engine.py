"""Every kind of family against transformers through an engine: batched, chunked, prefix hits.

Whatever runs beside a request and wherever its prefix comes from, the log-probabilities along its
answer are those that transformers gives for the same text in one pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hasten.core.loading import load_model
from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType
from hasten.kernels.step import MAX_LOGPROBS

from tests.helpers.engines import Answer, ask, run_requests
from tests.helpers.tiny_models import reference_logprobs, save_tiny_model
from tests.helpers.workbench import Workbench

TOLERANCE = 1e-4
NUM_TOKENS = 6
NAMES = (
    "llama",
    "qwen3-yarn-rope",
    "gemma2",
    "gemma3",
    "phi4-long-rope",
    "olmo2",
    "granite",
    "mixtral",
    "qwen3-moe",
)


@pytest.mark.parametrize("name", NAMES)
def test_answers_have_the_log_probabilities_of_transformers(
    name: str, kernels: str, tmp_path: Path
) -> None:
    theirs = save_tiny_model(name, tmp_path)
    model = load_model(str(tmp_path))
    bench = Workbench.make(model, kernels, DType.F32, num_blocks=64, max_model_len=128)
    random = np.random.default_rng(4)
    stem = random.integers(3, 20, 33).tolist()
    prompts = [stem + random.integers(3, 20, length).tolist() for length in (1, 14, 30)]
    params = GenerationParams(
        max_tokens=NUM_TOKENS, seed=1, ignore_eos=True, logprobs=MAX_LOGPROBS, temperature=0.0
    )
    requests = [ask(f"r{idx}", prompt, params) for idx, prompt in enumerate(prompts)]
    engine = bench.engine(max_num_batched_tokens=24)
    first = run_requests(engine, requests)
    again = run_requests(engine, requests)
    assert all(answer.num_cached_tokens >= 32 for answer in again.values())
    for answers in (first, again):
        for idx, prompt in enumerate(prompts):
            check(theirs, prompt, answers[f"r{idx}", 0])


def check(theirs: Any, prompt: list[int], answer: Answer) -> None:
    expected = reference_logprobs(theirs, prompt + answer.token_ids[:-1])[len(prompt) - 1 :]
    assert len(answer.logprobs) == len(expected) == NUM_TOKENS
    for entry, row in zip(answer.logprobs, expected, strict=True):
        difference = np.abs(np.array(entry.top_logprobs) - row[entry.top_token_ids]).max()
        assert difference <= TOLERANCE
