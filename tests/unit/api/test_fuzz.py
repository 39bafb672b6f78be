"""Any bytes, any JSON, any conversation: an answer or a refusal that says why, never a crash."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hasten.api.http.anthropic_request import CountTokensRequest, MessagesRequest
from hasten.api.http.body import decode_body
from hasten.api.http.embeddings import EmbeddingRequest
from hasten.api.http.errors import ApiError, to_api_error
from hasten.api.http.openapi import OPERATIONS
from hasten.api.http.requests import ChatRequest, CompletionRequest, GenerationRequest
from hasten.api.http.responses_request import ResponsesRequest
from hasten.api.text.answer_plan import AnswerStyle
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from hasten.core.params import InvalidParameterError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.fake_engine import TEMPLATE
from tests.helpers.timing import assert_linear

ROLES = ["system", "user", "assistant", "tool", "developer"]
KINDS = sorted({op.body for op in OPERATIONS.values() if op.body}, key=lambda kind: kind.__name__)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)
VALID: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
    "stop": ["a"],
    "logit_bias": {"5": 1.0},
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
}
VALID_FOR: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatRequest: VALID,
    MessagesRequest: {"model": "m", "messages": VALID["messages"], "max_tokens": 3},
    CountTokensRequest: {"model": "m", "messages": VALID["messages"]},
    ResponsesRequest: {"input": "Hi", "stream": True},
    EmbeddingRequest: {"input": "Hi"},
}
TEMPLATES = [
    ChatTemplate(TEMPLATE, {}),
    ChatTemplate(
        "{% for m in messages %}{{ m.role }}{{ m.content | trim }}"
        "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}",
        {},
    ),
]


def ask_for_everything(wanted: msgspec.Struct) -> None:
    """All that is done to a body before it needs a tokeniser. Raises what it may raise."""
    if isinstance(wanted, ResponsesRequest):
        wanted.check()
    if isinstance(wanted, ResponsesRequest | MessagesRequest | CountTokensRequest):
        wanted = wanted.chat(()) if isinstance(wanted, ResponsesRequest) else wanted.chat()
    elif isinstance(wanted, EmbeddingRequest):
        wanted = wanted.prompts()
    if not isinstance(wanted, GenerationRequest):
        return
    wanted.check()
    wanted.sampling_params({"temperature": 0.5})
    style = AnswerStyle("hermes")
    wanted.grammar(style)
    wanted.answer_plan(style, "")
    if isinstance(wanted, ChatRequest):
        messages, tools = wanted.template_messages(), wanted.tool_use.for_template()
        for template in TEMPLATES:
            template.render(messages, wanted.chat_template_kwargs, tools)
    elif isinstance(wanted, CompletionRequest):
        wanted.prompts()


def refuses_or_takes(body: bytes, kind: type[msgspec.Struct]) -> None:
    refusal = None
    try:
        ask_for_everything(decode_body(body, kind))
    except (ApiError, ChatTemplateError, InvalidParameterError) as error:
        refusal = to_api_error(error)
    assert refusal is None or (refusal.status == 400 and str(refusal))


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=200))
def test_any_bytes(kind: type[msgspec.Struct], body: bytes) -> None:
    refuses_or_takes(body, kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_value_in_any_field(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    field = data.draw(st.sampled_from((*kind.__struct_fields__, "prompt", "nonsense")))
    valid = VALID_FOR.get(kind, {"prompt": "x"})
    refuses_or_takes(json.dumps(valid | {field: data.draw(VALUES)}).encode(), kind)


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "tool_use", "tool_result", "thinking"]),
        "text": VALUES | st.text(),
        "id": st.text(max_size=3),
        "name": st.text(max_size=3),
        "input": VALUES,
        "tool_use_id": st.text(max_size=3),
        "content": VALUES,
    },
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "type": st.sampled_from(["function", "other"]),
        "function": st.fixed_dictionaries({"name": st.text(max_size=4), "arguments": st.text()}),
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES)},
        optional={
            "content": st.text() | st.lists(PARTS, max_size=3) | VALUES,
            "tool_calls": st.lists(CALLS, max_size=2) | st.none(),
            "tool_call_id": st.text(max_size=3),
            "name": st.text(max_size=3),
        },
    ),
    max_size=4,
)


@pytest.mark.parametrize("kind", [ChatRequest, MessagesRequest, ResponsesRequest])
@settings(deadline=None)
@given(messages=MESSAGES)
def test_any_messages(kind: type[msgspec.Struct], messages: list[dict[str, Any]]) -> None:
    name = "input" if kind is ResponsesRequest else "messages"
    refuses_or_takes(json.dumps(VALID_FOR[kind] | {name: messages}).encode(), kind)


UNITS: dict[str, tuple[str, str, str]] = {
    "messages": ('{"messages":[', '{"role":"user","content":"Hi"}', "]}"),
    "parts": ('{"messages":[{"role":"user","content":[', '{"type":"text","text":"x"}', "]}]}"),
    "stop": ('{"messages":[],"stop":[', '"x"', "]}"),
    "logit_bias": ('{"messages":[],"logit_bias":{', '"1":1', "}}"),
    "metadata": ('{"messages":[],"metadata":{', '"k":"v"', "}}"),
    "depth": ('{"messages":[],"audio":[', "[]", "]}"),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_body_is_read_in_linear_time(name: str) -> None:
    before, unit, after = UNITS[name]

    def read(size: int) -> None:
        refuses_or_takes((before + ",".join([unit] * size) + after).encode(), ChatRequest)

    assert_linear(read, 500)


@pytest.mark.parametrize("unit", ["x", " - at `$", "`", "unknown field `", "$[0]."])
def test_a_wrong_name_is_told_in_linear_time(unit: str) -> None:
    def read(size: int) -> None:
        refuses_or_takes(json.dumps({unit * size: 1}).encode(), ChatRequest)

    assert_linear(read, 5000)


@given(cut=st.integers(0, 400), piece=st.binary(max_size=6))
def test_a_body_that_was_damaged_on_its_way(cut: int, piece: bytes) -> None:
    body = json.dumps(VALID).encode()
    refuses_or_takes(body[:cut] + piece + body[cut + len(piece) :], ChatRequest)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ROLES), st.text()), min_size=1, max_size=8))
def test_any_conversation_renders_or_is_refused(said: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in said]
    try:
        text = ChatTemplate(TEMPLATE, {}).render(messages)
    except ChatTemplateError:
        return
    for _, content in said[:-1]:
        assert content in text
