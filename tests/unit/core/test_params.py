"""Generation parameters: every field out of range is refused by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hasten.core.params import MAX_SEED, GenerationParams, InvalidParameterError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_p", 1e-46),  # 0 in float32
        ("min_p", 1.5),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 1e-46),
        ("repetition_penalty", 1e39),
        ("repetition_penalty", math.nan),
        ("allowed_token_ids", ()),
        ("bad_words", ((),)),
        ("min_tokens", 9),
        ("n", 0),
        ("n", 129),
        ("logprobs", 21),
        ("prompt_logprobs", -1),
    ],
)
def test_out_of_range_names_the_field(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "seed": 1, field: value}
    with pytest.raises(InvalidParameterError) as caught:
        GenerationParams(**fields)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_bias_out_of_range_names_its_token() -> None:
    with pytest.raises(InvalidParameterError, match=r"logit_bias\.7: "):
        GenerationParams(max_tokens=8, seed=1, logit_bias={7: 101.0})


@pytest.mark.parametrize(
    "forbidding",
    [
        {"min_tokens": 1, "eos_token_ids": (2,), "stop_token_ids": (5,)},
        {"bad_words": ((2,), (7, 5))},
    ],
)
def test_some_allowed_token_is_left_whatever_was_written(forbidding: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "seed": 1} | forbidding
    with pytest.raises(InvalidParameterError, match="allowed_token_ids: bad_words or min_tokens"):
        GenerationParams(**fields, allowed_token_ids=(2, 5))
    GenerationParams(**fields, allowed_token_ids=(2, 5, 6))


def test_terminal_tokens_are_stop_tokens_and_eos_unless_ignored() -> None:
    params = GenerationParams(max_tokens=8, seed=1, eos_token_ids=(2,), stop_token_ids=(5,))
    assert params.terminal_token_ids == {2, 5}
    ignoring = msgspec.structs.replace(params, ignore_eos=True)
    assert ignoring.terminal_token_ids == {5}


def test_it_survives_the_wire() -> None:
    params = GenerationParams(
        max_tokens=8, seed=MAX_SEED, logit_bias={3: -1.5}, bad_words=((1, 2), (3,)), logprobs=5
    )
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=GenerationParams) == params


def test_a_bad_value_on_the_wire_is_refused() -> None:
    wire = msgspec.msgpack.encode({"max_tokens": 0, "seed": 1})
    with pytest.raises(msgspec.ValidationError, match="max_tokens"):
        msgspec.msgpack.decode(wire, type=GenerationParams)


def test_an_unknown_key_on_the_wire_is_refused() -> None:
    wire = msgspec.msgpack.encode({"max_tokens": 1, "seed": 1, "temprature": 1.0})
    with pytest.raises(msgspec.ValidationError, match="temprature"):
        msgspec.msgpack.decode(wire, type=GenerationParams)
