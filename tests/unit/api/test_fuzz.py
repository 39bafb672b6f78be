"""Any bytes, any JSON, any conversation: an answer or a refusal that says why, never a crash."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hasten.api.http.body import decode_body
from hasten.api.http.errors import ApiError
from hasten.api.http.requests import ChatRequest, CompletionRequest
from hasten.api.text.chat_template import ChatTemplate, ChatTemplateError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.fake_engine import TEMPLATE

ROLES = ["system", "user", "assistant"]
KINDS: list[type[msgspec.Struct]] = [ChatRequest, CompletionRequest]
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


def refuses_or_takes(body: bytes, kind: type[msgspec.Struct]) -> None:
    refusal = None
    try:
        decode_body(body, kind)
    except ApiError as error:
        refusal = error
    assert refusal is None or (refusal.status == 400 and str(refusal))


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=200))
def test_any_bytes(kind: type[msgspec.Struct], body: bytes) -> None:
    refuses_or_takes(body, kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(field=st.sampled_from(sorted(set(ChatRequest.__struct_fields__) | {"prompt"})), value=VALUES)
def test_any_value_in_any_field(kind: type[msgspec.Struct], field: str, value: Any) -> None:
    refuses_or_takes(json.dumps(VALID | {field: value}).encode(), kind)


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
