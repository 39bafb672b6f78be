"""Anthropic's Messages API with its official client; the engine answers with the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

RENDERED = "<user>Hi\n<assistant>"


@pytest.fixture(scope="module")
def client(http: httpx.Client) -> Iterator[anthropic.Anthropic]:
    key = http.headers["authorization"].removeprefix("Bearer ")
    with anthropic.Anthropic(base_url=str(http.base_url), api_key=key, max_retries=0) as made:
        yield made


def ask(**options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"model": "echo", "max_tokens": 50, "messages": messages} | options


def test_the_whole_answer(http: httpx.Client) -> None:
    answer = http.post("/v1/messages", json=ask(max_tokens=11)).json()
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "echo",
        "content": [{"type": "text", "text": RENDERED[:11]}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 17,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 11,
        },
    }


def test_blocks_and_stop_sequences(client: anthropic.Anthropic) -> None:
    block = {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}
    options = ask(
        system=[block],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "One"}]},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm", "signature": ""}],
            },
            {"role": "user", "content": "Two"},
        ],
        stop_sequences=["\n<assistant>TWO", "Two"],
        metadata={"user_id": "me"},
    )
    answer = client.messages.create(**options)
    assert answer.content[0].text == "<system>Be\n<user>One\n<assistant>\n<user>"
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Two")


def test_a_stream_builds_up_the_whole_answer(client: anthropic.Anthropic) -> None:
    options = ask(max_tokens=13, messages=[{"role": "user", "content": "grün"}])
    with client.messages.stream(**options) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert kinds.count("content_block_delta") > 5
    assert message.content[0].text == "<user>grün\n<"  # type: ignore[union-attr]  # a text
    assert message.stop_reason == "max_tokens"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (20, 13)
    whole = client.messages.create(**options)
    assert whole.content[0].text == "<user>grün\n<"
    assert whole.usage == message.usage


def test_a_call_of_a_function(client: anthropic.Anthropic) -> None:
    """The engine's answer is the prompt, whose last call is the user's."""
    call = '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
    options = ask(
        max_tokens=2000,
        messages=[{"role": "user", "content": call}],
        tools=[{"name": "add", "input_schema": {"type": "object"}}],
        stop_sequences=["\n<assist"],
    )
    whole = client.messages.create(**options)
    assert whole.content[-1].type == "tool_use"
    assert (whole.content[-1].name, whole.content[-1].input) == ("add", {"x": 1})
    with client.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == [block.type for block in whole.content]
    assert streamed.content[-1].type == "tool_use"
    assert streamed.content[-1].input == {"x": 1}
    answer = client.messages.create(
        **ask(
            messages=[
                {"role": "user", "content": "Add"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"x": 1}}],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "c1", "content": "2"},
                        {"type": "text", "text": "So?"},
                    ],
                },
            ],
            max_tokens=200,
        )
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text.startswith(f"<user>Add\n<assistant>{call}\n")
    assert "<user>So?" in answer.content[0].text


def test_counting_tokens(client: anthropic.Anthropic) -> None:
    options = ask()
    del options["max_tokens"]
    assert client.messages.count_tokens(**options).input_tokens == len(RENDERED)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_token": 3}, "unknown field 'max_token'; did you mean 'max_tokens'?"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1, got 0"),
        ({"temperature": 1.5}, "temperature: must be from 0.0 to 1.0, got 1.5"),
        ({"top_p": 2}, "top_p: must be in (0, 1], got 2.0"),
        ({"stop_sequences": [""]}, "stop_sequences: holds an empty string"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking is not supported"),
        ({"messages": []}, "messages must not be empty"),
        (
            {"tools": [{"name": "a b", "input_schema": {}}]},
            "tools[0].name: 1 to 64 letters, digits, dots, underscores and dashes",
        ),
        (
            {
                "tools": [{"name": "a", "input_schema": {"not": {}}}],
                "tool_choice": {"type": "tool", "name": "a"},
            },
            "tools[0].input_schema: the keyword 'not' is not supported (at /not)",
        ),
        (
            {
                "tools": [{"name": "a", "input_schema": {}}],
                "tool_choice": {"type": "tool", "name": "b"},
            },
            "tool_choice: no tool is called 'b'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].type: only text is supported yet",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text is required",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, options: dict[str, Any], told: str
) -> None:
    answer = http.post("/v1/messages", json=ask(**options))
    assert answer.status_code == 400
    error = {"type": "invalid_request_error", "message": told}
    assert answer.json() == {"type": "error", "error": error}


def test_errors_are_those_of_the_client(http: httpx.Client, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ask(model="other"))
    stranger = anthropic.Anthropic(base_url=str(http.base_url), api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError) as caught:
        stranger.messages.create(**ask())
    assert caught.value.body == {
        "type": "error",
        "error": {
            "type": "authentication_error",
            "message": "the API key is missing or wrong",
        },
    }
