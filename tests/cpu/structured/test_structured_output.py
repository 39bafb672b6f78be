"""The embedded model under grammars, at temperature 1, with and without speculation.

Every output is valid, ends within its limit, and is the same at every depth.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hasten.api.engine import build_engine
from hasten.api.structured.formats import StructuredOutputs
from hasten.api.text.tokenizer import Tokenizer, load_tokenizer
from hasten.core.loading import LoadError
from hasten.core.messages import AddRequest
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ModelOptions,
    SpeculationOptions,
)
from hasten.core.params import GenerationParams, Speculative

from tests.helpers.engines import Answer, ask, run_requests

MAX_TOKENS = 72
DEPTHS = (0, 1, 4, 8)
PROMPT = "<|im_start|>user\nWrite about a dog.<|im_end|>\n<|im_start|>assistant\n"
Check = Callable[[str], bool]


def json_check(is_valid: Callable[[Any], bool]) -> Check:
    return lambda text: is_valid(json.loads(text))


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"type": "number"},
        "below": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["value", "below"],
    "additionalProperties": False,
}


def is_person(value: Any) -> bool:
    tags = value.get("tags", [])
    return (
        isinstance(value["name"], str)
        and 0 <= value["age"] <= 99
        and len(tags) <= 3
        and set(tags) <= {"a", "b"}
        and value.keys() <= PERSON["properties"].keys()
    )


def is_tree(value: Any) -> bool:
    return (
        value.keys() == {"value", "below"}
        and isinstance(value["value"], int | float)
        and all(map(is_tree, value["below"]))
    )


CASES: dict[str, tuple[StructuredOutputs, Check]] = {
    "person": (StructuredOutputs(json=PERSON), json_check(is_person)),
    "tree": (StructuredOutputs(json=TREE), json_check(is_tree)),
    "object": (StructuredOutputs(json_object=True), json_check(lambda v: isinstance(v, dict))),
    "strings": (
        StructuredOutputs(json={"type": "array", "items": {"type": "string"}}),
        json_check(lambda v: all(isinstance(item, str) for item in v)),
    ),
    "address": (
        StructuredOutputs(json={"type": "string", "format": "email", "maxLength": 40}),
        json_check(lambda v: "@" in v),
    ),
    "regex": (
        StructuredOutputs(regex=r"(\w{1,12} ){2,6}dog\."),
        lambda text: re.fullmatch(r"(\w{1,12} ){2,6}dog\.", text) is not None,
    ),
    "choice": (StructuredOutputs(choice=["good", "bad"]), lambda text: text in ("good", "bad")),
    "grammar": (
        StructuredOutputs(grammar='start: /[0-9]{1,3}/ ("+" /[0-9]{1,3}/)*\n'),
        lambda text: re.fullmatch(r"\d{1,3}(\+\d{1,3})*", text) is not None,
    ),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    try:
        return load_tokenizer("embedded")
    except LoadError as error:
        pytest.skip(str(error))


def request(tokenizer: Tokenizer, name: str, depth: int) -> AddRequest:
    eos = tokenizer.eos_token_id
    assert eos is not None
    params = GenerationParams(
        max_tokens=MAX_TOKENS,
        seed=11,
        eos_token_ids=(eos,),
        grammar=CASES[name][0].compiled(),
        speculative=Speculative(max_depth=depth),
    )
    return ask(f"{name} {depth}", tokenizer.encode(PROMPT), params)


@pytest.fixture(scope="module")
def answers(tokenizer: Tokenizer) -> dict[str, Answer]:
    """All cases at all depths, side by side, by name and depth."""
    options = EngineOptions(
        model=ModelOptions(max_model_len=256),
        cache=CacheOptions(kv_cache_memory_bytes=64 * 2**20),
        speculation=SpeculationOptions("ngram", str(max(DEPTHS))),
    )
    engine = build_engine(options)
    requests = [request(tokenizer, name, depth) for depth in DEPTHS for name in CASES]
    found = {name: answer for (name, _), answer in run_requests(engine, requests).items()}
    assert engine.stats().num_accepted_draft_tokens > 0
    return found


@pytest.mark.parametrize("name", list(CASES))
def test_every_output_is_valid_and_ends_within_the_limit(
    tokenizer: Tokenizer, answers: dict[str, Answer], name: str
) -> None:
    answer = answers[f"{name} 0"]
    text = tokenizer.decode(answer.token_ids)
    assert answer.finish_reason == "stop", text
    assert len(answer.token_ids) <= MAX_TOKENS
    assert CASES[name][1](text), text


@pytest.mark.parametrize("depth", DEPTHS[1:])
@pytest.mark.parametrize("name", list(CASES))
def test_it_is_the_same_at_every_depth(answers: dict[str, Answer], name: str, depth: int) -> None:
    assert answers[f"{name} {depth}"].text == answers[f"{name} 0"].text
