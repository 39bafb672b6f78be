"""OpenAI's Responses API, against an engine that answers with the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hasten.api.http.errors import ApiError
from hasten.api.http.messages import ChatMessage
from hasten.api.http.responses_store import ResponseStore, StoredResponse
from openai import NotFoundError, OpenAI

RENDERED = "<user>Hi\n<assistant>"


@pytest.fixture(scope="module")
def openai(http: httpx.Client) -> Iterator[OpenAI]:
    key = http.headers["authorization"].removeprefix("Bearer ")
    with OpenAI(base_url=f"{http.base_url}/v1", api_key=key, max_retries=0) as client:
        yield client


def test_the_whole_answer(http: httpx.Client) -> None:
    body = {"model": "echo", "input": "Hi", "max_output_tokens": 11, "temperature": 0, "user": "me"}
    answer = http.post("/v1/responses", json=body).json()
    assert answer.pop("id").startswith("resp_")
    assert answer["output"][0].pop("id").startswith("msg_")
    assert isinstance(answer.pop("created_at"), int)
    assert answer == {
        "object": "response",
        "status": "incomplete",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"},
        "instructions": None,
        "max_output_tokens": 11,
        "metadata": {},
        "model": "echo",
        "output": [
            {
                "type": "message",
                "status": "incomplete",
                "role": "assistant",
                "content": [
                    {
                        "type": "output_text",
                        "annotations": [],
                        "logprobs": [],
                        "text": RENDERED[:11],
                    }
                ],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": 0.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 3},
            "output_tokens": 11,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 31,
        },
        "user": "me",
    }


@pytest.mark.parametrize(
    "given",
    [
        "Hi",
        [{"role": "user", "content": "Hi"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    ],
)
def test_forms_of_input(openai: OpenAI, given: Any) -> None:
    answer = openai.responses.create(model="echo", input=given, max_output_tokens=20)
    assert answer.output_text == RENDERED


def test_instructions_and_stop(openai: OpenAI) -> None:
    answer = openai.responses.create(
        model="echo", instructions="Be", input="Hi", extra_body={"stop": "<assist"}
    )
    assert answer.output_text == "<system>Be\n<user>Hi\n"
    assert answer.status == "completed"


def test_a_stream_builds_up_the_whole_answer(openai: OpenAI) -> None:
    stream = openai.responses.create(model="echo", input="grün", max_output_tokens=13, stream=True)
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == len(kinds) - 8 > 5
    last = events[-1]
    assert last.type == "response.incomplete"
    assert "".join(deltas) == last.response.output_text == "<user>grün\n<"
    assert openai.responses.retrieve(last.response.id) == last.response


def test_the_clients_own_streaming_helper(openai: OpenAI) -> None:
    options: Any = {"model": "echo", "input": "Hi", "max_output_tokens": 20}
    with openai.responses.stream(**options, extra_body={"stop": ["<assist"]}) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "<user>Hi\n"


def test_logprobs(openai: OpenAI) -> None:
    answer = openai.responses.create(
        model="echo",
        input="Hi",
        max_output_tokens=2,
        top_logprobs=1,
        include=["message.output_text.logprobs"],
    )
    message: Any = answer.output[0]
    (content,) = message.content
    assert [entry.token for entry in content.logprobs] == ["<", "u"]
    assert [entry.top_logprobs[0].token for entry in content.logprobs] == ["<", "u"]


def test_a_conversation_goes_on(openai: OpenAI) -> None:
    first = openai.responses.create(
        model="echo", input="Hi", instructions="forgotten", extra_body={"stop": "\n"}
    )
    assert first.output_text == "<system>forgotten"
    second = openai.responses.create(
        model="echo",
        input="More",
        previous_response_id=first.id,
        max_output_tokens=500,
        extra_body={"stop": "More"},
    )
    assert second.output_text == f"<user>Hi\n<assistant>{first.output_text}\n<user>"
    # The same by sending back what came, as agents do.
    items: Any = [{"role": "user", "content": "Hi"}, *first.output]
    items.append({"role": "user", "content": "More"})
    third = openai.responses.create(model="echo", input=items, extra_body={"stop": "More"})
    assert third.output_text == second.output_text


def test_what_is_remembered_can_be_shown_and_forgotten(openai: OpenAI) -> None:
    kept = openai.responses.create(model="echo", input="Hi", max_output_tokens=2)
    assert openai.responses.retrieve(kept.id) == kept
    openai.responses.delete(kept.id)
    for forgotten in (
        kept.id,
        openai.responses.create(model="echo", input="Hi", max_output_tokens=2, store=False).id,
    ):
        with pytest.raises(NotFoundError):
            openai.responses.retrieve(forgotten)
        with pytest.raises(NotFoundError) as caught:
            openai.responses.create(model="echo", input="x", previous_response_id=forgotten)
        assert caught.value.param == "previous_response_id"


CALLED = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def test_a_call_of_a_function(openai: OpenAI) -> None:
    """The engine's answer is the prompt, whose last call is the user's."""
    options: Any = {"model": "echo", "input": CALLED, "tools": [TOOL]}
    whole = openai.responses.create(**options, extra_body={"stop": "\n<assist"})
    call = whole.output[-1]
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("add", '{"x": 1}')
    stream = openai.responses.create(**options, extra_body={"stop": "\n<assist"}, stream=True)
    events = list(stream)
    deltas = [
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    ]
    assert "".join(deltas).endswith(call.arguments)
    last = events[-1]
    assert last.type == "response.completed"
    assert [item.type for item in last.response.output] == [item.type for item in whole.output]
    # What the function returned goes back, as agents send it.
    items: Any = [
        {"role": "user", "content": "Add"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
    ]
    answer = openai.responses.create(model="echo", input=items, max_output_tokens=200)
    assert answer.output_text.startswith(f"<user>Add\n<assistant>{CALLED}\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_ouput_tokens": 3}, "max_ouput_tokens"),
        ({"max_output_tokens": 9999}, "max_output_tokens"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "computer_call"}]}, "input[1].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"role": "user", "contents": "x"}]}, "input[0].contents"),
        ({"input": []}, "input"),
        ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}},
            "text.format.schema",
        ),
        ({"text": {"format": {"type": "json_schema", "name": 3}}}, "text.format.name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        (
            {
                "tools": [{"type": "function", "name": "a"}],
                "tool_choice": {"type": "function", "name": "b"},
            },
            "tool_choice.name",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    answer = http.post("/v1/responses", json={"input": "x"} | body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_the_nearest_name_is_told(http: httpx.Client) -> None:
    answer = http.post("/v1/responses", json={"input": "x", "max_ouput_tokens": 3}).json()
    assert "did you mean 'max_output_tokens'" in answer["error"]["message"]


def test_an_error_ends_the_stream(slow_http: httpx.Client) -> None:
    """Too long for what is left of the context is known before the first event: a status."""
    body = {"input": "x" * 5000, "stream": True}
    answer = slow_http.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input"


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_responses=2, max_bytes=100)
    stored = StoredResponse(b"x" * 20, (ChatMessage(role="user", content="y" * 10),))
    for name in ("a", "b", "c"):
        store.put(name, stored)
    assert len(store) == 2
    with pytest.raises(ApiError):
        store.get("a")
    store.put("large", StoredResponse(b"x" * 50, ()))
    assert len(store) == 2
    store.delete("c")
    store.delete("large")
    assert len(store) == 0
