"""Beam search over HTTP, on the embedded model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.helpers.server_process import ServerProcess

PROMPT = "The three primary colours are"


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0} | fields
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def score(choice: dict[str, Any]) -> float:
    logprobs = choice["logprobs"]["token_logprobs"]
    return float(sum(logprobs) / len(logprobs))


def said(answer: dict[str, Any]) -> list[tuple[str, str, list[float]]]:
    return [
        (choice["text"], choice["finish_reason"], choice["logprobs"]["token_logprobs"])
        for choice in answer["choices"]
    ]


def test_the_best_come_first_and_beat_the_greedy_text(http: httpx.Client) -> None:
    answer = complete(http, use_beam_search=True, n=3, best_of=4, early_stopping="never")
    scores = [score(choice) for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert scores == sorted(scores, reverse=True)
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    (greedy,) = complete(http)["choices"]
    assert scores[0] >= score(greedy)
    assert answer["usage"]["completion_tokens"] == sum(
        len(choice["logprobs"]["tokens"]) for choice in answer["choices"]
    )


def test_company_changes_nothing(http: httpx.Client) -> None:
    fields = {"use_beam_search": True, "n": 4, "length_penalty": 0.5}
    alone = complete(http, **fields)
    with ThreadPoolExecutor(8) as threads:
        beside = [threads.submit(complete, http, prompt=f"Item {i}:") for i in range(6)]
        again = [threads.submit(complete, http, **fields) for _ in range(3)]
        for future in again:
            assert said(future.result()) == said(alone)
        for other in beside:
            other.result()
    blocks = "".join(http.get("/v1/live").json()["kv_blocks"])
    assert set(blocks) <= {"0", "1"}  # nothing is held any more


def test_a_chat_with_the_official_client(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        ask: Any = client.chat.completions.create
        question: dict[str, Any] = {
            "model": client.models.list().data[0].id,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_completion_tokens": 24,
            "n": 2,
        }
        answer = ask(**question, extra_body={"use_beam_search": True})
        assert "Paris" in answer.choices[0].message.content
        assert len(answer.choices) == 2
        with pytest.raises(openai.BadRequestError, match="at the end only"):
            ask(**question, stream=True, extra_body={"use_beam_search": True})
