"""Structured output and tools with the embedded model, by the official client and by the pages."""

from __future__ import annotations

import json
from shutil import which
from typing import Any

import openai
import pytest

from tests.helpers.server_process import ServerProcess
from tests.server.test_docs import README_URL, curl, examples

MODEL = "SmolLM2-135M-Instruct"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS, "strict": True}}
    for name in ("get_weather", "get_news")
]
MESSAGES: list[Any] = [{"role": "user", "content": "Weather in Oslo, please."}]


def create(server: ServerProcess, **more: Any) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any")
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=90, seed=5, **more
    )


def is_right(arguments: str) -> bool:
    value = json.loads(arguments)
    return value.keys() == {"city", "days"} and value["days"] in (1, 2, 3)


def test_required_calls_fit_their_schemas(server: ServerProcess) -> None:
    choice = create(server, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    for call in choice.message.tool_calls:
        assert call.function.name in ("get_weather", "get_news")
        assert is_right(call.function.arguments)


def test_a_named_call_streamed_is_the_call_unstreamed(server: ServerProcess) -> None:
    named = {"type": "function", "function": {"name": "get_news"}}
    choice = create(server, tools=TOOLS, tool_choice=named).choices[0]
    assert choice.finish_reason == "stop"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_news"
    assert is_right(call.function.arguments)
    chunks = list(create(server, tools=TOOLS, tool_choice=named, stream=True))
    parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function and part.function.name] == [
        "get_news"
    ]
    pieces = [part.function.arguments or "" for part in parts if part.function]
    assert "".join(pieces) == call.function.arguments


def test_a_grammar_that_is_too_complex_is_the_request_s_fault(server: ServerProcess) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(server, extra_body={"structured_outputs": {"regex": "(a|b)*a(a|b){200}"}})
    assert refused.value.code == "grammar_too_complex"


def test_samples_of_one_request_follow_it_each(server: ServerProcess) -> None:
    schema = {"name": "n", "schema": PARAMETERS, "strict": True}
    answer = create(server, n=3, response_format={"type": "json_schema", "json_schema": schema})
    contents = [choice.message.content for choice in answer.choices]
    assert all(map(is_right, contents))
    assert len(set(contents)) > 1


@pytest.mark.skipif(which("curl") is None, reason="no curl here")
@pytest.mark.parametrize("command", examples("docs/structured-output.md", "sh"))
def test_the_curl_lines_of_the_page(server: ServerProcess, command: str) -> None:
    for shown in curl(command, server):
        assert json.loads(shown)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("page", ["docs/structured-output.md", "docs/tools.md"])
def test_the_python_of_the_pages(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    (code,) = examples(page, "python")
    names: dict[str, Any] = {}
    exec(code.replace(README_URL, server.url), names)
    names["client"].close()
    assert capsys.readouterr().out.strip()
