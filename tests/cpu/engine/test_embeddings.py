"""Embeddings equal transformers' final hidden states, however the prompt was computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hasten.core.build import build_engine
from hasten.core.engine import Engine
from hasten.core.messages import AddRequest
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
)
from hasten.core.params import GenerationParams

from tests.helpers.tiny_models import save_tiny_model

PROMPTS = [[5, 9, 2, 14, 17, 3, 8, 11, 10, 12, 7, 7, 15, 0, 13, 1, 2, 3, 19], [8], [4, 4, 6]]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model("llama", folder)
    return folder


def engine_of(folder: Path, kernels: str, chunk: int = 64, num_seqs: int = 8) -> Engine:
    options = EngineOptions(
        model=ModelOptions(
            model=str(folder), dtype="float32", enable_embeddings=True, max_model_len=64
        ),
        cache=CacheOptions(kv_cache_dtype="float32", kv_cache_memory_bytes=4_000_000),
        scheduler=SchedulerOptions(max_num_seqs=num_seqs, max_num_batched_tokens=chunk),
        execution=ExecutionOptions(kernels=kernels, num_threads=1),
    )
    return build_engine(options, report=lambda _: None)


def embed(engine: Engine, prompts: list[list[int]], pooling: str) -> list[list[float]]:
    """All at once; a request of the usual kind runs beside them."""
    params = GenerationParams(max_tokens=1, seed=0)
    chat = GenerationParams(max_tokens=6, seed=0, temperature=0.0)
    assert (
        engine.add_request(AddRequest(request_id="x", prompt_token_ids=[1, 2], params=chat)) is None
    )
    for i, prompt in enumerate(prompts):
        request = AddRequest(
            request_id=str(i), prompt_token_ids=prompt, params=params, pooling=pooling
        )
        assert engine.add_request(request) is None
    found: dict[str, list[float]] = {}
    num_tokens = 0
    while engine.has_work:
        for output in engine.step():
            if output.embedding is not None:
                assert (output.finish_reason, output.token_ids) == ("stop", [])
                found[output.request_id] = output.embedding
            num_tokens += len(output.token_ids)
    assert num_tokens == 6
    return [found[str(i)] for i in range(len(prompts))]


def oracle(folder: Path, pooling: str) -> list[npt.NDArray[np.float32]]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    pooled = []
    with torch.inference_mode():
        for prompt in PROMPTS:
            hidden = model.model(torch.tensor([prompt])).last_hidden_state[0]
            row = hidden.mean(0) if pooling == "mean" else hidden[-1]
            pooled.append(row.numpy())
    return pooled


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_equal_to_transformers(folder: Path, pooling: str) -> None:
    engine = engine_of(folder, "reference")
    for vector, expected in zip(
        embed(engine, PROMPTS, pooling), oracle(folder, pooling), strict=True
    ):
        assert np.abs(np.array(vector) - expected).max() <= TOLERANCE


def test_one_prompt_one_vector(folder: Path, kernels: str) -> None:
    """The same bits in chunks, beside others, and with its prefix in the cache."""
    whole = engine_of(folder, kernels)
    chunked = engine_of(folder, kernels, chunk=8)
    for pooling in ("mean", "last"):
        expected = [embed(whole, [prompt], pooling)[0] for prompt in PROMPTS]
        assert embed(whole, PROMPTS, pooling) == expected
        assert embed(chunked, PROMPTS, pooling) == expected


def test_the_tap_changes_no_token(folder: Path, kernels: str) -> None:
    texts = []
    for enabled in (False, True):
        options = EngineOptions(
            model=ModelOptions(model=str(folder), enable_embeddings=enabled, max_model_len=64),
            cache=CacheOptions(kv_cache_memory_bytes=4_000_000),
            scheduler=SchedulerOptions(max_num_seqs=4, max_num_batched_tokens=64),
            execution=ExecutionOptions(kernels=kernels, num_threads=1),
        )
        engine = build_engine(options, report=lambda _: None)
        params = GenerationParams(max_tokens=20, seed=3, logprobs=2)
        request = AddRequest(request_id="x", prompt_token_ids=PROMPTS[0], params=params)
        assert engine.add_request(request) is None
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        texts.append([(output.token_ids, output.logprobs) for output in outputs])
    assert texts[0] == texts[1]


def test_it_has_to_be_asked_for(folder: Path) -> None:
    options = EngineOptions(
        model=ModelOptions(model=str(folder), max_model_len=64),
        cache=CacheOptions(kv_cache_memory_bytes=4_000_000),
        scheduler=SchedulerOptions(max_num_seqs=4, max_num_batched_tokens=64),
    )
    engine = build_engine(options, report=lambda _: None)
    params = GenerationParams(max_tokens=1, seed=0)
    request = AddRequest(request_id="x", prompt_token_ids=[1], params=params, pooling="mean")
    refused = engine.add_request(request)
    assert refused is not None
    assert refused.field == "pooling"
