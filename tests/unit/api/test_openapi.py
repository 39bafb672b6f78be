"""The OpenAPI document says what the server does."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from hasten.api.http.openapi import OPERATIONS


@pytest.fixture(name="document", scope="module")
def _document(http: httpx.Client) -> dict[str, Any]:
    answer = http.get("/openapi.json")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


def references(node: object) -> set[str]:
    """All that a document refers to."""
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(references, node.values()))
    if isinstance(node, list):
        return set().union(*map(references, node))
    return set()


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_field_of_a_body_is_listed(document: dict[str, Any]) -> None:
    for (method, path), operation in OPERATIONS.items():
        if operation.body is None:
            assert method != "POST"
            continue
        content = document["paths"][path]["post"]["requestBody"]["content"]
        name = content["application/json"]["schema"]["$ref"].rpartition("/")[-1]
        listed = document["components"]["schemas"][name]
        assert set(listed["properties"]) == set(operation.body.__struct_encode_fields__)
        assert listed["additionalProperties"] is False


HI = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALLED = {"type": "function", "function": {"name": "f"}}
ASKED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/v1/chat/completions", {"messages": [HI], "max_tokens": 2}),
    (
        "POST",
        "/v1/chat/completions",
        {
            "messages": [HI],
            "max_tokens": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "prompt_logprobs": 1,
            "n": 2,
            "tools": [CALLED],
        },
    ),
    (
        "POST",
        "/v1/completions",
        {"prompt": "ab", "max_tokens": 2, "echo": True, "logprobs": 1, "prompt_logprobs": 1},
    ),
    ("POST", "/v1/completions", {"prompt": ["a", "b"], "use_beam_search": True, "n": 2}),
    (
        "POST",
        "/v1/responses",
        {
            "input": "Hi",
            "max_output_tokens": 2,
            "include": ["message.output_text.logprobs"],
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": "none",
        },
    ),
    ("POST", "/v1/messages", {"model": "echo", "messages": [HI], "max_tokens": 2, "tools": [TOOL]}),
    ("POST", "/v1/messages/count_tokens", {"model": "echo", "messages": [HI]}),
    ("POST", "/v1/embeddings", {"input": "Hi"}),
    ("POST", "/v1/embeddings", {"input": ["Hi"], "encoding_format": "base64"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/{model}", None),
    ("POST", "/tokenize", {"prompt": "Hi"}),
    ("POST", "/detokenize", {"tokens": [72]}),
    ("GET", "/tokenizer_info", None),
    ("GET", "/health", None),
    ("GET", "/ready", None),
    ("GET", "/version", None),
    ("GET", "/v1/live", None),
    ("GET", "/v1/debug/requests", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ASKED)
def test_answers_are_of_the_type_that_is_listed(
    http: httpx.Client, method: str, path: str, body: dict[str, Any] | None
) -> None:
    answer = http.request(method, path.replace("{model}", "echo"), json=body)
    assert answer.status_code == 200, answer.text
    check_type(answer, OPERATIONS[method, path].answer)


def check_type(answer: httpx.Response, kind: type[msgspec.Struct] | None) -> None:
    """Read and written again as a `kind`, it holds neither less nor more."""
    assert kind is not None
    rewritten = msgspec.to_builtins(msgspec.json.decode(answer.content, type=kind), str_keys=True)
    assert rewritten == answer.json()


def test_a_remembered_response_too(http: httpx.Client) -> None:
    made = http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 2}).json()
    path = f"/v1/responses/{made['id']}"
    check_type(http.get(path), OPERATIONS["GET", "/v1/responses/{id}"].answer)
    check_type(http.delete(path), OPERATIONS["DELETE", "/v1/responses/{id}"].answer)


def test_every_answer_is_checked_here(document: dict[str, Any]) -> None:
    listed = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    asked = {(method, path) for method, path, _ in ASKED}
    elsewhere = {
        ("GET", "/metrics"),
        ("GET", "/v1/responses/{id}"),
        ("DELETE", "/v1/responses/{id}"),
    }
    assert listed == asked | elsewhere == OPERATIONS.keys()


def test_every_path_is_served(http: httpx.Client, document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method in operations:
            asked = http.request(
                method, path.replace("{", "").replace("}", ""), content=b"nonsense"
            )
            assert asked.status_code != 405, (method, path)
            assert str(asked.status_code) in operations[method]["responses"], (method, path)


def test_errors_have_the_shape_that_is_listed(http: httpx.Client, document: dict[str, Any]) -> None:
    error = document["components"]["schemas"]["Error"]["properties"]["error"]
    body = http.post("/v1/completions", content=b"{").json()
    assert set(body["error"]) == set(error["required"])
    assert msgspec.json.encode(body)
