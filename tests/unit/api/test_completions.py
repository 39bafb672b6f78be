"""`/v1/completions`, exact payloads, over an engine that answers with the prompt."""

from typing import Any

import httpx
import pytest

from tests.helpers.fake_engine import MARK_ID
from tests.helpers.sse import joined_choices, read_events

PATH = "/v1/completions"


def ask(http: httpx.Client, prompt: Any, **more: Any) -> dict[str, Any]:
    response = http.post(PATH, json={"prompt": prompt, **more})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def test_an_answer_exactly(http: httpx.Client) -> None:
    answer = ask(http, [97, 98], max_tokens=3, seed=5)
    assert answer.pop("id").startswith("cmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "object": "text_completion",
        "model": "echo",
        "system_fingerprint": "fp_echo",
        "seed": 5,
        "choices": [
            {
                "index": 0,
                "text": "aba",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_all_four_forms_of_a_prompt(http: httpx.Client) -> None:
    # A text gets the special token of the tokeniser in front, ids are taken as they are.
    assert texts(ask(http, "ab", max_tokens=3)) == ["ab"]
    assert texts(ask(http, ["ab", "cd"], max_tokens=3)) == ["ab", "cd"]
    assert texts(ask(http, [97, 98], max_tokens=3)) == ["aba"]
    assert texts(ask(http, [[97], [98, 99]], max_tokens=3)) == ["aaa", "bcb"]


def test_sixteen_tokens_by_default(http: httpx.Client) -> None:
    assert texts(ask(http, [97])) == ["a" * 16]


def test_choices_are_numbered_prompt_by_prompt(http: httpx.Client) -> None:
    answer = ask(http, [[97], [98]], n=2, max_tokens=2)
    assert texts(answer) == ["aa", "aa", "bb", "bb"]
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 6


def test_echo_puts_the_prompt_in_front(http: httpx.Client) -> None:
    assert texts(ask(http, [97, 98], echo=True, max_tokens=1, n=2)) == ["aba", "aba"]


def test_echo_with_log_probabilities_scores_the_prompt(http: httpx.Client) -> None:
    answer = ask(http, [[97, 98, 99], [MARK_ID, 98]], echo=True, max_tokens=1, logprobs=1, n=2)
    assert texts(answer) == ["abca", "abca", "b", "b"]
    assert [choice["logprobs"] for choice in answer["choices"][:2]] == 2 * [
        {
            "tokens": ["a", "b", "c", "a"],
            "token_logprobs": [None, -0.5, -0.5, -0.5],
            "top_logprobs": [None, {"b": -0.5}, {"c": -0.5}, {"a": -0.5}],
            "text_offset": [0, 1, 2, 3],
        }
    ]
    # A special token has a name, and no text.
    assert answer["choices"][2]["logprobs"]["tokens"] == ["<mark>", "b", "<mark>"]
    assert answer["choices"][2]["logprobs"]["text_offset"] == [0, 0, 1]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 2, "echo": True},
        {"logprobs": 2},
        {"logprobs": 0},
        {"logprobs": 2, "echo": True, "n": 2},
        {"stop": ["cé", "x"]},
        {"max_tokens": 4},
    ],
)
def test_streamed_equals_unstreamed(http: httpx.Client, options: dict[str, Any]) -> None:
    prompts = [list("abcé😀".encode()), list(b"xyz"), [0xF0, 0x9F, 0x61]]
    body = {"prompt": prompts, "seed": 1} | options
    whole = http.post(PATH, json=body).json()
    streamed = joined_choices(read_events(http, PATH, body), "text")
    for choice in whole["choices"]:
        assert streamed[choice.pop("index")] == choice
    assert len(streamed) == len(whole["choices"])


def test_prompt_logprobs_exactly(http: httpx.Client) -> None:
    answer = ask(http, [97, 98, MARK_ID], max_tokens=1, prompt_logprobs=1, n=2)
    scores = [
        None,
        {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}},
        {
            "257": {"logprob": -0.5, "rank": None, "decoded_token": "<mark>"},
            "1": {"logprob": -0.5, "rank": 1, "decoded_token": "\x01"},
        },
    ]
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [scores, scores]
    none = ask(http, [97, 98], max_tokens=1, prompt_logprobs=0)["choices"][0]["prompt_logprobs"]
    assert none == [None, {"98": {"logprob": -0.5, "rank": None, "decoded_token": "b"}}]
    # Each of the two asked for gets as many as it asked for.
    both = ask(http, [97, 98], max_tokens=1, prompt_logprobs=0, echo=True, logprobs=1)["choices"][0]
    assert both["prompt_logprobs"] == none
    assert both["logprobs"]["top_logprobs"] == [None, {"b": -0.5}, {"a": -0.5}]


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_at_all_only_scores(http: httpx.Client, stream: bool) -> None:
    body = {"prompt": [[97, 98], [99]], "max_tokens": 0, "echo": True, "logprobs": 1, "n": 2}
    if stream:
        choices = joined_choices(read_events(http, PATH, body), "text")
    else:
        answer = ask(http, **body)
        assert answer["usage"]["completion_tokens"] == 0
        choices = dict(enumerate(answer["choices"]))
    assert [choices[i]["text"] for i in range(4)] == ["ab", "ab", "c", "c"]
    assert {choice["finish_reason"] for choice in choices.values()} == {"length"}
    assert choices[1]["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {"b": -0.5}],
        "text_offset": [0, 1],
    }


def test_special_tokens_are_text_when_asked_for(http: httpx.Client) -> None:
    prompt = [97, MARK_ID, 98]
    assert texts(ask(http, prompt, max_tokens=3)) == ["ab"]
    shown = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert texts(ask(http, prompt, max_tokens=3, **shown)) == ["a<mark>b"]
    answer = ask(http, prompt, max_tokens=3, echo=True, logprobs=0, **shown)
    assert texts(answer) == ["a<mark>ba<mark>b"]
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 7, 8, 9, 15]
    # A stop token is not shown, whatever its kind.
    assert texts(ask(http, prompt, max_tokens=3, stop_token_ids=[MARK_ID], **shown)) == ["a"]


def test_special_tokens_before_a_text_can_be_left_out(http: httpx.Client) -> None:
    assert texts(ask(http, "ab", add_special_tokens=False, max_tokens=3)) == ["aba"]


def test_usage_is_one_last_chunk(http: httpx.Client) -> None:
    body = {"prompt": [[97], [98]], "stream_options": {"include_usage": True}}
    events = read_events(http, PATH, body)
    assert [bool(event["choices"]) for event in events] == [True] * (len(events) - 1) + [False]
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["usage"]["completion_tokens"] == 32
