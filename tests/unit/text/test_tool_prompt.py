"""Tools for templates that know none."""

from typing import Any

from hasten.api.text.tool_prompt import with_tools_described

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "Hi"}


def test_tools_are_described_in_a_system_message() -> None:
    system, user = with_tools_described([USER], [TOOL])
    assert system["role"] == "system"
    assert '\n{"name": "f", "parameters": {"type": "object"}}\n' in system["content"]
    assert "<tool_call>" in system["content"]
    assert user == USER


def test_they_follow_the_system_message_that_there_is() -> None:
    system, _ = with_tools_described([{"role": "system", "content": "Be brief."}, USER], [TOOL])
    assert system["content"].startswith("Be brief.\n\nYou can call")


def test_calls_and_their_results_are_written_out() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"é": 1}}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Wait.", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c"},
    ]
    assert with_tools_described(messages, []) == [
        {
            "role": "assistant",
            "content": 'Wait.\n<tool_call>\n{"name": "f", "arguments": {"é": 1}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\n42\n</tool_response>"},
    ]


def test_other_messages_stay_as_they_are() -> None:
    assert with_tools_described([USER | {"name": "Ann"}], []) == [USER | {"name": "Ann"}]
