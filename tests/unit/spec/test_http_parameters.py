"""`speculative` in the body of a request, and what becomes of nonsense in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hasten.api.http.requests import ChatRequest, CompletionRequest
from hasten.api.params import SamplingParams
from hasten.core.params import GenerationParams, InvalidParameterError, Speculative


def body(**fields: Any) -> bytes:
    return msgspec.json.encode({"prompt": "x", **fields})


def sampling_of(**fields: Any) -> SamplingParams:
    return msgspec.json.decode(body(**fields), type=CompletionRequest).sampling_params({})


def test_it_reaches_the_sampling_parameters() -> None:
    assert sampling_of().speculative == Speculative()
    assert sampling_of(speculative={"enabled": False}).speculative == Speculative(enabled=False)
    wanted = {"enabled": True, "max_depth": 2, "method": "ngram"}
    assert sampling_of(speculative=wanted).speculative == Speculative(max_depth=2, method="ngram")
    chat = msgspec.convert(
        {"messages": [{"role": "user", "content": "x"}], "speculative": {"max_depth": 0}},
        ChatRequest,
    )
    assert chat.sampling_params({}).speculative.max_depth == 0


@pytest.mark.parametrize("wrong", [{"depth": 2}, {"enabled": "no"}, {"max_depth": 1.5}, 3])
def test_what_is_not_understood_is_refused(wrong: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        sampling_of(speculative=wrong)


@pytest.mark.parametrize("max_depth", [-1, 17])
def test_a_depth_out_of_range_is_named(max_depth: int) -> None:
    with pytest.raises(InvalidParameterError, match=r"speculative\.max_depth"):
        GenerationParams(max_tokens=1, seed=0, speculative=Speculative(max_depth=max_depth))
