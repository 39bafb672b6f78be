"""Options validate themselves, and each has a default and one help text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hasten.core.options import (
    CacheOptions,
    ConfigurationError,
    ExecutionOptions,
    ModelOptions,
    SchedulerOptions,
    ServerOptions,
)

GROUPS = (ModelOptions, CacheOptions, SchedulerOptions, ExecutionOptions, ServerOptions)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_defaults_are_valid_and_every_option_is_explained(group: type[Any]) -> None:
    made = group()
    for declared in dataclasses.fields(made):
        assert declared.metadata["help"]
        choices = declared.metadata["choices"]
        assert choices is None or getattr(made, declared.name) in choices


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (lambda: ModelOptions(max_model_len=0), "--max-model-len"),
        (lambda: CacheOptions(gpu_memory_utilization=0.0), "--gpu-memory-utilization"),
        (lambda: CacheOptions(gpu_memory_utilization=1.1), "--gpu-memory-utilization"),
        (lambda: CacheOptions(block_size=24), "--block-size"),
        (lambda: CacheOptions(kv_cache_memory_bytes=0), "--kv-cache-memory-bytes"),
        (lambda: SchedulerOptions(max_num_seqs=0), "--max-num-seqs"),
        (lambda: SchedulerOptions(max_num_batched_tokens=8), "--max-num-batched-tokens"),
        (lambda: SchedulerOptions(target_itl_ms=0.0), "--target-itl-ms"),
        (lambda: ExecutionOptions(num_threads=0), "--num-threads"),
        (lambda: ExecutionOptions(num_threads=100_000), "--num-threads"),
        (lambda: ServerOptions(port=70_000), "--port"),
        (lambda: ServerOptions(api_key=""), "--api-key"),
        (lambda: ServerOptions(allowed_origins="https://a.example,b.example"), "'b.example'"),
        (lambda: ServerOptions(allowed_origins="https://a.example/"), "--allowed-origins"),
        (lambda: ServerOptions(shutdown_timeout_s=-1.0), "--shutdown-timeout-s"),
    ],
)
def test_a_value_out_of_range_names_its_flag(make: Callable[[], object], flag: str) -> None:
    with pytest.raises(ConfigurationError, match=flag):
        make()


def test_origins() -> None:
    listed = ServerOptions(allowed_origins="https://a.example, http://localhost:3000,")
    assert listed.origins == ("https://a.example", "http://localhost:3000")
    assert ServerOptions(allowed_origins="*").origins == ("*",)
    assert ServerOptions().origins == ()
