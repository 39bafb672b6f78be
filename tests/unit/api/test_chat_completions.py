"""`/v1/chat/completions`, exact payloads, over an engine that answers with the prompt."""

import json
import time
from typing import Any

import httpx
import pytest

from tests.helpers.sse import joined_choices, read_events

PATH = "/v1/chat/completions"
# What the fake template makes of one message "Hé", and so what the fake engine answers.
PROMPT = "<user>Hé\n<assistant>"
NUM_PROMPT_TOKENS = len(PROMPT.encode())


def body_of(content: str = "Hé", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 12, **more}


def ask(http: httpx.Client, **more: Any) -> dict[str, Any]:
    response = http.post(PATH, json=body_of(**more))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def without_clock(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer.pop("id").startswith("chatcmpl-")
    assert abs(answer.pop("created") - time.time()) < 60
    return answer


def test_an_answer_exactly(http: httpx.Client) -> None:
    assert without_clock(ask(http, seed=7)) == {
        "object": "chat.completion",
        "model": "echo",
        "system_fingerprint": "fp_echo",
        "seed": 7,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "<user>Hé\n<a", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": NUM_PROMPT_TOKENS,
            "completion_tokens": 12,
            "total_tokens": NUM_PROMPT_TOKENS + 12,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_a_stream_exactly(http: httpx.Client) -> None:
    body = body_of(max_tokens=9, seed=7, stream_options={"include_usage": True})
    events = [without_clock(event) for event in read_events(http, PATH, body)]
    head = {
        "object": "chat.completion.chunk",
        "model": "echo",
        "system_fingerprint": "fp_echo",
        "seed": 7,
    }
    # The two bytes of "é" come in two steps, and one event.
    pieces = ["<", "u", "s", "e", "r", ">", "H", "é"]
    for i, (event, piece) in enumerate(zip(events, pieces, strict=False)):
        role = {"role": "assistant"} if i == 0 else {}
        assert event == head | {
            "choices": [
                {
                    "index": 0,
                    "delta": role | {"content": piece},
                    "logprobs": None,
                    "finish_reason": "length" if i == 7 else None,
                    "stop_reason": None,
                }
            ],
            "usage": None,
        }
    usage = {
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "completion_tokens": 9,
        "total_tokens": NUM_PROMPT_TOKENS + 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert events[8:] == [head | {"choices": [], "usage": usage}]


def test_usage_comes_only_when_asked_for(http: httpx.Client) -> None:
    assert all("usage" not in event for event in read_events(http, PATH, body_of()))


@pytest.mark.parametrize(
    "content", ["plain", "é😀e\u0301👩‍👩‍👧", "a\x00b", "line\n\n  line", '"\\</s>']
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 3},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 3, "n": 2},
        {"stop": ["sist", "\n"]},
        {"stop": "ser>", "include_stop_str_in_output": True},
        {"stop": "user", "min_tokens": 8, "logprobs": True},
        {"stop_token_ids": [0x73]},
        {"max_tokens": 7},
    ],
)
def test_streamed_equals_unstreamed(
    http: httpx.Client, content: str, options: dict[str, Any]
) -> None:
    body = body_of(content, max_tokens=40, seed=1) | options
    whole = http.post(PATH, json=body).json()
    streamed = joined_choices(read_events(http, PATH, body), "delta")
    assert len(streamed) == len(whole["choices"]) == options.get("n", 1)
    for choice in whole["choices"]:
        assert streamed[choice["index"]] == {
            "text": choice["message"]["content"],
            "logprobs": choice["logprobs"],
            "finish_reason": choice["finish_reason"],
            "stop_reason": choice["stop_reason"],
        }


def test_a_stop_string_ends_the_text_before_it(http: httpx.Client) -> None:
    answer = ask(http, stop=["ist"], max_tokens=100)
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "<user>Hé\n<ass"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "ist")
    # Counted up to the token that completed it.
    assert answer["usage"]["completion_tokens"] == len("<user>Hé\n<assist".encode())


def test_log_probabilities_exactly(http: httpx.Client) -> None:
    content = ask(http, max_tokens=2, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]
    assert content == {
        "content": [
            {
                "token": "<",
                "logprob": -0.5,
                "bytes": [60],
                "top_logprobs": [
                    {"token": "<", "logprob": -0.5, "bytes": [60]},
                    {"token": "=", "logprob": -1.0, "bytes": [61]},
                ],
            },
            {
                "token": "u",
                "logprob": -0.5,
                "bytes": [117],
                "top_logprobs": [
                    {"token": "u", "logprob": -0.5, "bytes": [117]},
                    {"token": "v", "logprob": -1.0, "bytes": [118]},
                ],
            },
        ],
        "refusal": None,
    }


def test_prompt_logprobs_of_a_conversation(http: httpx.Client) -> None:
    scores = ask(http, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"]
    assert len(scores) == NUM_PROMPT_TOKENS
    assert scores[:2] == [None, {"117": {"logprob": -0.5, "rank": 1, "decoded_token": "u"}}]


def test_variables_of_the_template(http: httpx.Client) -> None:
    answer = ask(http, chat_template_kwargs={"assistant_name": "bot"}, max_tokens=100, stop="\n")
    assert answer["usage"]["prompt_tokens"] == NUM_PROMPT_TOKENS + len("bot") - len("assistant")


def test_half_a_character_is_named_by_its_bytes(http: httpx.Client) -> None:
    tokens = ask(http, max_tokens=9, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens[7:]] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_a_seed_is_chosen_and_returned(http: httpx.Client) -> None:
    seeds = {ask(http)["seed"] for _ in range(4)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_parts_of_text_are_joined(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "é"}]
    answer = ask(http, messages=[{"role": "user", "content": parts}])
    assert answer["choices"][0]["message"]["content"] == "<user>Hé\n<a"


def test_an_answer_can_be_sent_back_as_it_came(http: httpx.Client) -> None:
    message = ask(http)["choices"][0]["message"]
    messages = [{"role": "developer", "content": "x"}, message, {"role": "user", "content": "y"}]
    text = ask(http, messages=messages, max_tokens=50)["choices"][0]["message"]["content"]
    assert text.startswith("<system>x\n<assistant><user>Hé\n<a\n<user>y\n<assi")


def test_a_last_message_of_the_assistant_is_continued(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    answer = ask(http, messages=messages, max_tokens=100, stop="<assistant>b<user>")
    assert answer["choices"][0]["message"]["content"] == "<user>a\n"


def test_without_a_limit_the_context_is_filled(http: httpx.Client) -> None:
    response = http.post(PATH, json={"messages": [{"role": "user", "content": "Hé"}]})
    assert response.json()["usage"]["total_tokens"] == 4096


def test_neutral_values_of_what_is_not_supported_pass(http: httpx.Client) -> None:
    ask(
        http,
        tools=None,
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        service_tier="auto",
        store=False,
        user="u",
        metadata={"a": "b"},
        safety_identifier="s",
        prompt_cache_key="k",
        spaces_between_special_tokens=True,
        stream_options=None,
        max_completion_tokens=None,
        stop=None,
        logit_bias={"50": -100, "51": 5},
    )


def test_an_aborted_stream_frees_the_engine(slow_http: httpx.Client) -> None:
    with slow_http.stream("POST", PATH, json=body_of(max_tokens=2000, stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        assert running(slow_http) == 1
    wait_idle(slow_http)


def test_an_abandoned_answer_frees_the_engine(slow_http: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow_http.post(PATH, json=body_of(max_tokens=2000), timeout=0.3)
    wait_idle(slow_http)


def test_a_stop_string_in_one_sample_leaves_the_others(slow_http: httpx.Client) -> None:
    answer = ask(slow_http, n=2, max_tokens=30, stop="ser")
    assert [choice["stop_reason"] for choice in answer["choices"]] == ["ser", "ser"]
    wait_idle(slow_http)


def running(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("hasten_num_running "))


def wait_idle(http: httpx.Client) -> None:
    for _ in range(100):
        if running(http) == 0:
            return
        time.sleep(0.02)
    raise AssertionError("the engine still runs something")


def test_events_are_json_without_spaces_in_one_line_each(http: httpx.Client) -> None:
    """Clients that are no JSON parsers look for `data: {` at the start of a line."""
    body = body_of("two\n\nlines", stream=True)
    with http.stream("POST", PATH, json=body) as response:
        raw = response.read().decode()
    for block in raw.removesuffix("\n\n").split("\n\n"):
        assert "\n" not in block
        if block != "data: [DONE]":
            json.loads(block.removeprefix("data: "))
