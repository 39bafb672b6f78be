"""Beam search over real arithmetic: what a dense forward and transformers' `generate` find.

The same bits however it ran.
"""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hasten.core.loading import load_model
from hasten.core.messages import AddRequest
from hasten.core.params import Beam, GenerationParams
from hasten.kernels.dtypes import DType

from tests.cpu.engine.test_one_request_one_text import bench_of, check_one_text
from tests.helpers.engines import ask, run_requests
from tests.helpers.naive_beams import search
from tests.helpers.tiny_models import reference_logprobs, save_tiny_model
from tests.helpers.workbench import Workbench

TOLERANCE = 1e-3
"""Of a sum of log-probabilities; what two tokens differ by here is more."""


def beams(width: int, **fields: object) -> GenerationParams:
    beam = Beam(width=width, length_penalty=0.7)
    return GenerationParams(max_tokens=12, seed=0, n=width, beam=beam, logprobs=0, **fields)  # type: ignore[arg-type]  # fields of GenerationParams


def test_a_search_finds_what_a_dense_forward_finds(kernels: str, tmp_path: Path) -> None:
    theirs = save_tiny_model("llama", tmp_path)
    model = load_model(str(tmp_path))
    bench = Workbench.make(model, kernels, DType.F32, num_blocks=100, max_model_len=64)

    def logprobs_after(tokens: tuple[int, ...]) -> npt.NDArray[np.float64]:
        return np.asarray(reference_logprobs(theirs, list(tokens))[-1], np.float64)

    for width in (1, 3, 4):
        request = ask("a", [1, 5, 9, 3, width], beams(width, eos_token_ids=(2, 7)))
        expected = search(logprobs_after, request.prompt_token_ids, request.params)
        answers = run_requests(bench.engine(), [request])
        for idx, found in enumerate(expected):
            answer = answers["a", idx]
            assert (answer.token_ids, answer.finish_reason) == (
                found.token_ids,
                found.finish_reason,
            )
            cum_logprob = sum(entry.token_logprob for entry in answer.logprobs)
            assert cum_logprob == pytest.approx(found.cum_logprob, abs=TOLERANCE)


def transformers_finds(theirs: Any, request: AddRequest) -> list[list[int]]:
    """What `generate` answers; for a beam of one it takes the likeliest token in each step."""
    params, prompt = request.params, request.prompt_token_ids
    beam, ends = params.beam, params.eos_token_ids
    assert beam is not None
    ranking = {"length_penalty": beam.length_penalty, "early_stopping": beam.early_stopping}
    ids = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=params.max_tokens,
        do_sample=False,
        num_beams=beam.width,
        num_return_sequences=beam.width,
        eos_token_id=list(ends),
        pad_token_id=ends[0],
        **(ranking if beam.width > 1 else {}),
    )
    answers: list[list[int]] = [row[len(prompt) :] for row in ids.tolist()]
    ended = [[idx for idx, token in enumerate(answer) if token in ends] for answer in answers]
    return [
        answer[: at[0] + 1] if at else answer for answer, at in zip(answers, ended, strict=True)
    ]


def test_a_search_finds_what_transformers_finds(tmp_path: Path) -> None:
    theirs = save_tiny_model("llama", tmp_path)
    model = load_model(str(tmp_path))
    engine = Workbench.make(
        model, "reference", DType.F32, num_blocks=400, max_model_len=64
    ).engine()
    requests = []
    for width, early, penalty in product((1, 3), (True, False, "never"), (0.0, 1.0, 2.0)):
        if width == 1 and early == "never" and penalty > 0:
            continue  # goes on behind the end of the likeliest text, which `generate` does not
        beam = Beam(width=width, length_penalty=penalty, early_stopping=early)  # type: ignore[arg-type]  # one of these three
        params = GenerationParams(max_tokens=10, seed=0, n=width, beam=beam, eos_token_ids=(2, 7))
        requests += [
            ask(f"{width} {early} {penalty} {i}", [1, 5, 9, i], params) for i in range(3, 6)
        ]
    answers = run_requests(engine, requests)
    for request in requests:
        found = [answers[request.request_id, idx].token_ids for idx in range(request.params.n)]
        assert found == transformers_finds(theirs, request), request
    assert {answer.finish_reason for answer in answers.values()} == {"stop", "length"}


def mixed_requests(vocab_size: int) -> list[AddRequest]:
    """Searches and samples, over prompts that share their first half."""
    rng = random.Random(3)
    stem = [rng.randrange(vocab_size) for _ in range(25)]
    requests = []
    for i, width in enumerate((3, 0, 2, 0, 4)):
        prompt = stem + [rng.randrange(vocab_size) for _ in range(rng.randint(1, 25))]
        sampled = GenerationParams(max_tokens=12, seed=i, logprobs=1)
        requests.append(ask(f"r{i}", prompt, beams(width) if width else sampled))
    return requests


@pytest.mark.parametrize("name", ["plain", "windowed"])
def test_one_request_one_text(name: str, kernels: str) -> None:
    bench = bench_of(name, kernels)
    check_one_text(bench, mixed_requests(bench.vocab_size))
