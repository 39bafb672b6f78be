"""From options to an engine: the embedded model answers, and what cannot be honoured is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hasten.core.build import build_engine
from hasten.core.engine import Engine
from hasten.core.loading import LoadError
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    EngineOptions,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
)
from hasten.core.params import GenerationParams

from tests.helpers.engines import ask, run_requests

OPTIONS = EngineOptions(
    model=ModelOptions(max_model_len=512, served_model_name="small"),
    cache=CacheOptions(kv_cache_memory_bytes=64 * 2**20),
    scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=128, target_itl_ms=1000.0),
)
COUNTING = [28, 216, 33, 216, 34, 216, 35, 216, 36]
REPORT: list[str] = []


@pytest.fixture(scope="module")
def engine(kernels: str) -> Iterator[Engine]:
    REPORT.clear()
    options = replace(OPTIONS, execution=ExecutionOptions(kernels=kernels))
    try:
        yield build_engine(options, REPORT.append)
    except LoadError as error:
        pytest.skip(str(error))


def test_it_answers_and_repeats_itself(engine: Engine) -> None:
    params = GenerationParams(max_tokens=12, seed=1, temperature=0.0, logprobs=1)
    first = run_requests(engine, [ask("a", COUNTING, params)])
    again = run_requests(engine, [ask("b", COUNTING, params)])
    assert len(first["a", 0].token_ids) == 12
    assert first["a", 0].text == again["b", 0].text


def test_the_report_says_what_the_memory_and_the_time_went_to(engine: Engine) -> None:
    text = "\n".join(REPORT)
    for part in ("weights", "KV cache", "tokens", "blocks of 16", "concurrency", "load", "profile"):
        assert part in text


def test_ready_tells_clients_what_they_need(engine: Engine) -> None:
    ready = engine.ready_message()
    assert ready.model_name == "small"
    assert ready.max_model_len == 512
    assert ready.vocab_size == 49152
    assert ready.num_kv_tokens >= 512
    assert len(ready.config_hash) == 16


def test_a_request_beyond_the_limit_is_refused(engine: Engine) -> None:
    refused = engine.add_request(ask("a", COUNTING, GenerationParams(max_tokens=510, seed=1)))
    assert refused is not None
    assert "this server's limit is 512" in refused.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            EngineOptions(execution=ExecutionOptions(tensor_parallel_size=2)),
            "--tensor-parallel-size 2 is not supported",
        ),
        (EngineOptions(cache=CacheOptions(kv_cache_dtype="fp4")), "--kv-cache-dtype fp4"),
        (
            EngineOptions(
                model=ModelOptions(max_model_len=4096),
                cache=CacheOptions(kv_cache_memory_bytes=2**20),
            ),
            "lower --max-model-len to at most",
        ),
        (EngineOptions(model=ModelOptions(max_model_len=9000)), "--max-model-len 9000 exceeds"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    engine: Engine, options: EngineOptions, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_engine(options, REPORT.append)


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(LoadError, match="--quantization int3"):
        build_engine(EngineOptions(model=ModelOptions(quantization="int3")), REPORT.append)
