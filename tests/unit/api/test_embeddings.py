"""`/v1/embeddings`, against an engine that embeds a prompt as a few numbers of it."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI

from tests.helpers.fake_engine import embedding_of

PATH = "/v1/embeddings"


def ask(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_whole_answer(http: httpx.Client) -> None:
    given = [[1, 2, 3], [4, 5]]
    assert ask(http, input=given, normalize=False) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": embedding_of(prompt, "mean")}
            for i, prompt in enumerate(given)
        ],
        "model": "echo",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }


def test_vectors_have_length_one(http: httpx.Client) -> None:
    (data,) = ask(http, input="Hi", pooling="last")["data"]
    # The mark that texts begin with counts.
    expected = np.array(embedding_of([257, *b"Hi"], "last"))
    assert np.allclose(data["embedding"], expected / np.linalg.norm(expected), rtol=1e-6)


def test_base64_holds_the_same_numbers(http: httpx.Client) -> None:
    options: dict[str, Any] = {"input": "Hi", "pooling": "last"}
    (data,) = ask(http, **options, encoding_format="base64")["data"]
    numbers = np.frombuffer(base64.b64decode(data["embedding"]), "<f4")
    (plain,) = ask(http, **options)["data"]
    assert numbers.tolist() == np.array(plain["embedding"], np.float32).tolist()


def test_the_official_client(http: httpx.Client) -> None:
    key = http.headers["authorization"].removeprefix("Bearer ")
    with OpenAI(base_url=f"{http.base_url}/v1", api_key=key, max_retries=0) as client:
        answer = client.embeddings.create(model="echo", input=["Hi", "there"])
    assert [len(entry.embedding) for entry in answer.data] == [3, 3]
    assert answer.usage.prompt_tokens == 9


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [""], "add_special_tokens": False}, "input"),
        ({"input": [999]}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": "x", "dimensions": 2}, "dimensions"),
        ({"input": "x", "pooling": "cls"}, "pooling"),
        ({"input": "x", "temperature": 1}, "temperature"),
        ({}, "input"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    answer = http.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
