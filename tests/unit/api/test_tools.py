"""Tools and reasoning over HTTP, exact payloads, over an engine that answers with the prompt.

The fake template shows messages as they are, so what the user writes is what the model writes.
"""

import json
from typing import Any

import httpx
import pytest

from tests.helpers.sse import read_events

PATH = "/v1/chat/completions"
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "What it does",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
ECHO = "<user>"
CALLS = (
    'Wait. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    '<tool_call>{"name": "g", "arguments": {"é": "x"}}</tool_call>'
)


def body_of(content: str, **more: Any) -> dict[str, Any]:
    """A request whose answer is `content`, after the echo of its role, and no more."""
    num_tokens = len(ECHO.encode()) + len(content.encode())
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "max_tokens": num_tokens} | more


def answer_to(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def merged_stream(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The message that a stream makes, put together as OpenAI's client does."""
    message: dict[str, Any] = {"role": None, "content": None, "refusal": None}
    finish_reason = None
    for event in read_events(http, PATH, body):
        (choice,) = event["choices"]
        finish_reason = choice["finish_reason"] or finish_reason
        for key, value in choice["delta"].items():
            if key == "tool_calls":
                _merge_calls(message.setdefault("tool_calls", []), value)
            else:
                message[key] = (message.get(key) or "") + value
    return {"message": message, "finish_reason": finish_reason}


def _merge_calls(calls: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    for part in parts:
        if part["index"] == len(calls):
            call = {"id": part["id"], "type": part["type"], "function": {"arguments": ""}}
            calls.append(call)
        function = calls[part["index"]]["function"]
        function.setdefault("name", part["function"].get("name"))
        function["arguments"] += part["function"].get("arguments", "")


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    ids = [call.pop("id") for call in message.get("tool_calls", [])]
    assert len(set(ids)) == len(ids)
    assert all(call_id.startswith("call_") for call_id in ids)
    return message


def in_both_ways(http: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The message and the finish reason, which a stream gives too."""
    whole, streamed = answer_to(http, body), merged_stream(http, body | {"stream": True})
    message = without_ids(whole["message"])
    # A stream cannot say that there is no content: it says nothing.
    assert without_ids(streamed["message"]) == message
    assert streamed["finish_reason"] == whole["finish_reason"]
    return message, whole["finish_reason"]


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_that_the_model_decides_on(http: httpx.Client) -> None:
    # The fake template knows no tools, so that a system message describes them: the echo of it
    # holds an example between the same tags.
    body = body_of("x", tools=[TOOL]) | {"max_tokens": 1500}
    message, finish_reason = in_both_ways(http, body)
    assert finish_reason == "length"
    assert message["content"].startswith("<system>You can call these functions")
    assert message["tool_calls"][0] == call("the function", '{"an argument": "its value"}')


@pytest.mark.parametrize("choice", [None, "none"])
def test_without_tools_calls_are_text(http: httpx.Client, choice: str | None) -> None:
    more = {} if choice is None else {"tools": [TOOL], "tool_choice": choice}
    message, _ = in_both_ways(http, body_of(CALLS, **more))
    assert message == {"role": "assistant", "content": ECHO + CALLS, "refusal": None}


def test_a_forced_function_has_the_text_as_its_arguments(http: httpx.Client) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    body = body_of("x", tools=[TOOL], tool_choice=named) | {"max_tokens": 20}
    message, finish_reason = in_both_ways(http, body)
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [call("f", "<system>You can call")],
    }
    assert finish_reason == "length"


def test_conversations_with_calls_are_rendered(http: httpx.Client) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    choice = answer_to(http, {"messages": messages, "max_tokens": 200})
    assert choice["message"]["content"].startswith(
        '<user>u\n<assistant><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        "<user><tool_response>\n42\n</tool_response>\n<assistant>"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True},
            }
        },
        {"structured_outputs": {"regex": "a+"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    ],
)
def test_grammars_reach_the_engine(http: httpx.Client, more: dict[str, Any]) -> None:
    """The fake engine does not follow them, but takes them."""
    assert answer_to(http, body_of("x", **more))["finish_reason"] == "length"


def test_text_completions_take_grammars_too(http: httpx.Client) -> None:
    body = {"prompt": "x", "max_tokens": 2, "structured_outputs": {"json": {"not": {}}}}
    error = http.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "structured_outputs.json"
    assert "at /not" in error["message"]
    good = body | {"structured_outputs": {"json": json.dumps({"type": "null"})}}
    assert http.post("/v1/completions", json=good).status_code == 200
