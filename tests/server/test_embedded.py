"""The embedded model over HTTP: it answers, and what it answers depends on the request alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.helpers.sse import joined_choices, read_events

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SKY = {"messages": [{"role": "user", "content": "What colour is the sky?"}], "max_tokens": 16}
EMOJI = {
    "messages": [{"role": "user", "content": "Answer only with emoji: 🎉👩‍👩‍👧🇫🇷 é ü"}],
    "max_tokens": 12,
    "seed": 3,
    "temperature": 1.5,
}


def ask(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_it_answers(http: httpx.Client) -> None:
    answer = ask(http, CHAT, SKY | {"temperature": 0})
    assert "blue" in answer["choices"][0]["message"]["content"]
    assert answer["model"] == "SmolLM2-135M-Instruct"
    assert answer["system_fingerprint"]


def test_a_seed_repeats_an_answer(http: httpx.Client) -> None:
    first = ask(http, CHAT, SKY)
    again = ask(http, CHAT, SKY | {"seed": first["seed"]})
    assert again["choices"] == first["choices"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3},
        {"logprobs": True, "top_logprobs": 4, "n": 2},
        {"stop": ["e", "\n"], "temperature": 0.7},
        {"temperature": 2.0, "top_p": 0.99, "top_k": 1000, "min_p": 0.0001},
        {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.3},
        {"logit_bias": {"0": -100}, "bad_words": ["the"], "min_tokens": 10},
    ],
)
def test_streamed_equals_unstreamed(http: httpx.Client, options: dict[str, Any]) -> None:
    whole = ask(http, CHAT, EMOJI | options)
    streamed = joined_choices(read_events(http, CHAT, EMOJI | options), "delta")
    assert {
        choice["index"]: {
            "text": choice["message"]["content"],
            "logprobs": choice["logprobs"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
        }
        for choice in whole["choices"]
    } == streamed


def test_the_second_time_the_prompt_is_cached(http: httpx.Client) -> None:
    content = "Tell me about the history of the city of Rome, from its founding to today, please."
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "seed": 4,
        # Other tests have left the beginning that all conversations share in the cache.
        "cache_salt": "its own",
    }
    cold, warm = (ask(http, CHAT, body | {"logprobs": True}) for _ in range(2))
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    assert warm["choices"] == cold["choices"]


def test_a_salt_keeps_caches_apart(http: httpx.Client) -> None:
    content = "Tell me about the history of the city of Paris, from its founding to today, please."
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    for salt in ("a", "b"):
        usage = ask(http, CHAT, body | {"cache_salt": salt})["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def score(http: httpx.Client, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """As evaluation tools ask for log-likelihoods."""
    answer = ask(
        http,
        TEXT,
        {
            "prompt": prompts,
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        },
    )
    return [choice["logprobs"] for choice in answer["choices"]]


def test_log_likelihoods(http: httpx.Client) -> None:
    texts = ["The capital of France is Paris, and it lies on the", "One two three four"]
    prompts = [http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    together = score(http, prompts)
    for prompt, logprobs in zip(prompts, together, strict=True):
        values, top = logprobs["token_logprobs"], logprobs["top_logprobs"]
        assert len(values) == len(top) == len(prompt) + 1
        assert values[0] is None
        assert top[0] is None
        assert all(value <= 0 for value in values[1:])
        # The last token is greedy, so its own is the largest; for the others it is at most that.
        assert values[-1] == max(top[-1].values())
        assert all(
            value <= max(best.values()) for value, best in zip(values[1:], top[1:], strict=True)
        )
    assert [score(http, [prompt])[0] for prompt in prompts] == together
    # Warm: the prompts are in the cache by now as a generation leaves them.
    ask(http, TEXT, {"prompt": prompts, "max_tokens": 1})
    assert score(http, prompts) == together


def test_a_prompt_that_can_never_fit(http: httpx.Client) -> None:
    response = http.post(TEXT, json={"prompt": "word " * 600, "max_tokens": 1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert "512" in response.json()["error"]["message"]
