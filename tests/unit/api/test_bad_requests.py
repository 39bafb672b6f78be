"""Bad input: the right status, the field at fault, and no harm to others."""

import gzip
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hasten.api.http.body import MAX_BODY_BYTES

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "x"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    error: dict[str, Any] = body["error"]
    return error


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[]"}}
JSON = {"type": "json_object"}
BEAMS = {"use_beam_search": True, "stream": False}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | more}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOL = function("f")

CHAT_ERRORS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "must not be empty"),
    ({"messages": [USER] * 2049}, "messages", "at most 2048"),
    ({"messages": "x"}, "messages", "expected `array`, got `str`"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
    ({"messages": [USER | {"color": 1}]}, "messages[0].color", "unknown field"),
    ({"messages": [USER | {"tool_calls": [{}]}]}, "messages[0].tool_calls[0].id", "is required"),
    ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls", "'assistant'"),
    ({"messages": [USER | {"tool_call_id": "c"}]}, "messages[0].tool_call_id", "role 'tool'"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [CALL]}, USER]},
        "messages[0].tool_calls[0].function.arguments",
        "must be a JSON object",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "only text",
    ),
    ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
    ({"max_token": 1}, "max_token", "did you mean 'max_tokens'"),
    ({"temprature" * 9: 1}, ("temprature" * 9)[:64], "unknown field"),
    ({"temperature": "hot"}, "temperature", "got `str`"),
    ({"temperature": -0.1}, "temperature", "from 0.0 to 2.0"),
    ({"temperature": 2.1}, "temperature", "from 0.0 to 2.0"),
    ({"top_p": 0}, "top_p", "(0, 1]"),
    ({"top_p": 1.5}, "top_p", "(0, 1]"),
    ({"top_k": -2}, "top_k", "at least 0"),
    ({"min_p": 2}, "min_p", "from 0.0 to 1.0"),
    ({"presence_penalty": 3}, "presence_penalty", "from -2.0 to 2.0"),
    ({"frequency_penalty": -3}, "frequency_penalty", "from -2.0 to 2.0"),
    ({"repetition_penalty": 0}, "repetition_penalty", "positive"),
    ({"n": 0}, "n", "from 1 to 128"),
    ({"n": 1.0}, "n", "got `float`"),
    ({"n": True}, "n", "got `bool`"),
    ({"seed": -1}, "seed", "must be from 0"),
    ({"seed": 2**64}, "seed", "must be from 0"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": 10**30}, "max_tokens", "<= 2147483647"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"max_completion_tokens": 5000}, "max_completion_tokens", "4096"),
    ({"max_completion_tokens": 1, "max_tokens": 1}, "max_completion_tokens", "give one"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "from 0 to 3"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "from -100.0 to 100.0"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "expected `int`"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
    ({"logprobs": 1}, "logprobs", "got `int`"),
    ({"stop": [""]}, "stop", "empty string"),
    ({"stop": ["x"] * 65}, "stop", "at most 64"),
    ({"stop": "x" * 1025}, "stop", "at most 1024"),
    ({"stop": [1]}, "stop[0]", "expected `str`"),
    ({"bad_words": [" "]}, "bad_words", "empty word"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "streamed answers only"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "not supported",
    ),
    ({"priority": 1}, "priority", "fcfs"),
    ({"prompt_logprobs": 21, "stream": False}, "prompt_logprobs", "from 0 to 20"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not streamed"),
    (
        {"skip_special_tokens": False, "spaces_between_special_tokens": True},
        "spaces_between_special_tokens",
        "as they are",
    ),
    ({"metadata": {"k": 1}}, "metadata[...]", "expected `str`"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "at most 16"),
    ({"metadata": {"k": "x" * 513}}, "metadata", "at most 512"),
    (
        {"chat_template_kwargs": {"messages": []}},
        "chat_template_kwargs.messages",
        "cannot be set",
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "is required"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "'f' is there twice"),
    ({"tools": [function("f g")]}, "tools[0].function.name", "letters, digits"),
    (
        {"tools": [function("f", strict=True, parameters={"not": {}})]},
        "tools[0].function.parameters",
        "at /not",
    ),
    ({"tools": [TOOL] * 129}, "tools", "at most 128"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"tool_choice": named("g"), "tools": [TOOL]}, "tool_choice.function.name", "called 'g'"),
    (
        {"tool_choice": "required", "tools": [function("f", parameters={"not": {}})]},
        "tools[0].function.parameters",
        "at /not",
    ),
    ({"response_format": JSON, "tools": [TOOL]}, "response_format", "cannot be combined"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
    (
        {"response_format": JSON, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "are the same",
    ),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"lark": "("}}, "structured_outputs.lark", "unknown field"),
    ({"response_format": JSON, "min_tokens": 2}, "min_tokens", "cannot be combined"),
    ({"response_format": JSON, "ignore_eos": True}, "ignore_eos", "cannot be combined"),
    ({"response_format": JSON, "bad_words": ["a"]}, "bad_words", "cannot be combined"),
    ({"length_penalty": 2.0}, "length_penalty", "needs use_beam_search: true"),
    ({"early_stopping": "soon"}, "early_stopping", "'soon'"),
    (BEAMS | {"stream": True}, "stream", "at the end only"),
    (BEAMS | {"n": 11}, "n", "from 1 to 10"),
    (BEAMS | {"best_of": 11}, "best_of", "from 1 to 10"),
    (BEAMS | {"n": 3, "best_of": 2}, "n", "from 1 to 2"),
    (BEAMS | {"length_penalty": 11}, "length_penalty", "from -10.0 to 10.0"),
    (BEAMS | {"temperature": 0.5}, "temperature", "does not sample"),
    (BEAMS | {"top_p": 0.5}, "top_p", "cannot be combined with beam search"),
    (BEAMS | {"stop": "x"}, "stop", "stop_token_ids can"),
    (BEAMS | {"response_format": JSON}, "use_beam_search", "structured output"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "not supported yet"),
    ({"modalities": ["audio"]}, "modalities", "not supported yet"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "message"), CHAT_ERRORS)
def test_chat_errors_name_the_field(
    http: httpx.Client, fields: dict[str, Any], param: str, message: str, stream: bool
) -> None:
    body = {"messages": [USER]} | ({"stream": True} if stream else {}) | fields
    if stream and param == "stream_options":
        body["stream"] = False
    response = http.post(CHAT, json=body)
    error = error_of(response)
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": []}, "prompt", "must not be empty"),
        ({"prompt": [[]]}, "prompt", "must not be empty"),
        ({"prompt": ["a", 1]}, "prompt", "one kind"),
        ({"prompt": [[1], "a"]}, "prompt", "one kind"),
        ({"prompt": [1.5]}, "prompt[0]", "got `float`"),
        ({"prompt": [258]}, "prompt", "outside the vocabulary of 258"),
        ({"prompt": [[1], [-1]]}, "prompt", "token id -1"),
        ({"prompt": [2**70]}, "prompt", "outside the vocabulary"),
        ({"prompt": [[1]] * 1025}, "prompt", "at most 1024"),
        ({"prompt": None}, "prompt", "got `null`"),
        ({}, "prompt", "required"),
        ({"prompt": "x" * 5000}, "prompt", "4096"),
        ({"prompt": "x", "max_tokens": 4095}, "max_tokens", "4096"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt": [1] * 5000}, "prompt", "has 5000 tokens"),
        ({"prompt": "x" * 2**20}, "prompt", "has at least"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens", "at least 1"),
        ({"prompt": "x", "max_tokens": 0, "min_tokens": 1}, "min_tokens", "max_tokens is 0"),
        ({"prompt": "x", "prompt_logprobs": -1}, "prompt_logprobs", "from 0 to 20"),
        ({"prompt": "x", "best_of": 2}, "best_of", "needs use_beam_search: true"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "not supported yet"),
        ({"prompt": "x", "messages": []}, "messages", "unknown field"),
    ],
)
def test_completion_errors_name_the_field(
    http: httpx.Client, fields: dict[str, Any], param: str, message: str
) -> None:
    response = http.post(TEXT, json=fields)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_a_too_long_conversation_names_messages(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 5000}]}
    response = http.post(CHAT, json=body)
    assert (response.status_code, error_of(response)["param"]) == (400, "messages")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"messages": [}', "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "UTF-8"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b'{"temperature": NaN, "messages": []}', "not valid JSON"),
        (b"[]", "expected `object`"),
        (b'{"messages":[],"audio":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested too deeply"),
        (b"[" * 10_000, "expected `object`"),
    ],
)
def test_a_malformed_body(http: httpx.Client, content: bytes, message: str) -> None:
    response = http.post(CHAT, content=content)
    assert response.status_code == 400
    assert message in error_of(response)["message"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_50_mb_is_refused(http: httpx.Client, announced: bool) -> None:
    size = 50 * 2**20
    chunk = b" " * 2**20

    def chunks() -> Iterator[bytes]:
        for _ in range(size // len(chunk)):
            yield chunk

    headers = {"content-length": str(size)} if announced else {}
    response = http.post(CHAT, content=chunks(), headers=headers)
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


def test_a_large_body_within_the_limit_is_read(http: httpx.Client) -> None:
    content = json.dumps(
        {"messages": [USER], "max_tokens": 1, "user": "x" * (MAX_BODY_BYTES - 1000)}
    )
    assert http.post(CHAT, content=content, params={"a": "b"}).status_code == 200


def test_a_compressed_body_is_refused(http: httpx.Client) -> None:
    content = gzip.compress(json.dumps({"messages": [USER]}).encode())
    response = http.post(CHAT, content=content, headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_encoding"
    plain = json.dumps({"messages": [USER], "max_tokens": 1})
    response = http.post(CHAT, content=plain, headers={"content-encoding": "identity"})
    assert response.status_code == 200


def test_an_unknown_model(http: httpx.Client) -> None:
    for path, body in ((CHAT, {"messages": [USER]}), (TEXT, {"prompt": "x"})):
        response = http.post(path, json=body | {"model": "gpt-4" + 10_000 * "x"})
        error = error_of(response)
        assert response.status_code == 404
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "'echo'" in error["message"]
        assert len(error["message"]) < 300


def test_unknown_paths_and_methods_have_the_same_shape(http: httpx.Client) -> None:
    response = http.get("/v1/nothing")
    assert (response.status_code, error_of(response)["type"]) == (404, "not_found_error")
    response = http.get(CHAT)
    assert (response.status_code, error_of(response)["type"]) == (405, "invalid_request_error")


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Basic x", "Bearer é"])
def test_a_wrong_key(http: httpx.Client, header: str | None) -> None:
    headers = [] if header is None else [(b"authorization", header.encode())]
    with httpx.Client(base_url=http.base_url) as stranger:
        response = stranger.post(CHAT, json={"messages": [USER]}, headers=headers)
        assert response.status_code == 401
        assert error_of(response)["code"] == "invalid_api_key"
        # Probes need no key.
        for path in ("/health", "/ready", "/version", "/metrics"):
            assert stranger.get(path).status_code == 200


def test_others_stream_on_meanwhile(slow_http: httpx.Client) -> None:
    """Bad and large input beside a stream does not hold up its tokens."""
    gaps: list[float] = []
    body = {"messages": [USER], "max_tokens": 50, "stream": True}
    with slow_http.stream("POST", CHAT, json=body) as response:
        last_s = time.monotonic()
        for i, line in enumerate(filter(None, response.iter_lines())):
            gaps.append(time.monotonic() - last_s)
            if i == 5:
                bad = {"messages": [{"role": "user", "content": "x" * 2**20}]}
                assert slow_http.post(CHAT, json=bad).status_code == 400
            last_s = time.monotonic()
            assert line
    assert len(gaps) == 51
