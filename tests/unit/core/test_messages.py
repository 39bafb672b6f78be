"""Messages between API and engine survive msgpack, and one decoder per direction tells them."""

from __future__ import annotations

import msgspec
import pytest
from hasten.core.messages import (
    AbortRequests,
    AddRequest,
    EngineFailed,
    EngineInput,
    EngineOutput,
    EngineReady,
    GetStats,
    OutputBatch,
    PositionLogprobs,
    RequestRefused,
    Shutdown,
    Stats,
    TokenOutput,
)
from hasten.core.params import GenerationParams

PARAMS = GenerationParams(max_tokens=4, seed=3)
INPUTS: list[EngineInput] = [
    AddRequest(request_id="a", prompt_token_ids=[1, 2], params=PARAMS, cache_salt="s"),
    AbortRequests(["a", "b"]),
    AbortRequests(["a"], sample_idx=1),
    GetStats(),
    Shutdown(),
]
OUTPUTS: list[EngineOutput] = [
    OutputBatch(
        [
            TokenOutput(
                request_id="a",
                token_ids=[7],
                logprobs=[PositionLogprobs(-0.5, [7, 8], [-0.5, -1.5])],
                prompt_logprobs=[None, PositionLogprobs(-1.0, [], [])],
                finish_reason="stop",
                stop_token_id=7,
            )
        ]
    ),
    RequestRefused(request_id="a", message="too long", field="prompt"),
    Stats(
        num_running=1,
        num_waiting=2,
        num_free_blocks=[3],
        num_total_blocks=[4],
        num_preemptions=0,
        num_prompt_tokens=5,
        num_generated_tokens=6,
        num_cached_prompt_tokens=7,
        num_recomputed_tokens=8,
        num_steps=9,
    ),
    EngineReady(
        model_name="m",
        eos_token_ids=(2,),
        generation_defaults={"temperature": 0.6, "top_k": 20},
        max_model_len=8,
        vocab_size=9,
        num_kv_tokens=10,
        config_hash="h",
    ),
    EngineFailed("out of memory"),
]


@pytest.mark.parametrize("message", INPUTS, ids=lambda m: type(m).__name__)
def test_inputs_survive(message: EngineInput) -> None:
    wire = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(wire, type=EngineInput) == message


@pytest.mark.parametrize("message", OUTPUTS, ids=lambda m: type(m).__name__)
def test_outputs_survive(message: EngineOutput) -> None:
    wire = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(wire, type=EngineOutput) == message
