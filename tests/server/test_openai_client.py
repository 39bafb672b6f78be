"""The official client, sync and async, streaming and not."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.helpers.server_process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Name a colour."},
]


@pytest.fixture(name="base_url")
def _base_url(server: ServerProcess) -> str:
    return f"{server.url}/v1"


def test_sync(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="any") as client:
        assert client.models.list().data[0].id == MODEL
        whole = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_completion_tokens=12, seed=1, logprobs=True
        )
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= 12
        content = whole.choices[0].message.content
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content

        stream = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_completion_tokens=12,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
        assert "".join(pieces) == content
        assert [chunk.usage is not None for chunk in chunks].count(True) == 1
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.total_tokens == whole.usage.total_tokens


def test_async(base_url: str) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="any") as client:
            texts = await asyncio.gather(
                *(
                    client.completions.create(
                        model=MODEL, prompt="One, two,", max_tokens=8, temperature=0, n=2
                    )
                    for _ in range(4)
                )
            )
            assert len({choice.text for text in texts for choice in text.choices}) == 1
            stream = await client.completions.create(
                model=MODEL, prompt="One, two,", max_tokens=8, temperature=0, stream=True
            )
            pieces = [chunk.choices[0].text async for chunk in stream]
            assert "".join(pieces) == texts[0].choices[0].text

    asyncio.run(run())


def test_extensions_go_in_the_extra_body(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="any") as client:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=4,
            extra_body={"top_k": 5, "min_p": 0.1, "ignore_eos": True, "repetition_penalty": 1.1},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4


def test_errors_are_the_clients_own(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model=MODEL, messages=MESSAGES, extra_body={"temprature": 1}
            )
        assert caught.value.param == "temprature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=MESSAGES)


CHAT_OPTIONS: list[dict[str, Any]] = [
    {"max_tokens": 5},
    {"n": 3, "logprobs": True, "top_logprobs": 20},
    {"stop": ["e", "\n"], "temperature": 0.7, "top_p": 0.9},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "logit_bias": {"100": -100}},
    {"user": "u", "metadata": {"k": "v"}, "safety_identifier": "s", "prompt_cache_key": "k"},
    {"messages": [*MESSAGES, {"role": "assistant", "content": "A fine colour is"}]},
    {
        "extra_body": {
            "top_k": 9,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "min_tokens": 2,
            "bad_words": ["red"],
            "stop_token_ids": [3],
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "cache_salt": "s",
        }
    },
]
TEXT_OPTIONS: list[dict[str, Any]] = [
    {"prompt": "One, two,"},
    {"prompt": ["One, two,", "Red, green"], "n": 2},
    {"prompt": [504, 3575, 282], "echo": True, "logprobs": 5},
    {"prompt": [[504, 3575], [282, 4649, 314]], "echo": True, "logprobs": 1, "max_tokens": 0},
    {"prompt": "One, two,", "stop": [], "user": "u", "extra_body": {"ignore_eos": True}},
]


def joined(chunks: list[Any], *, is_chat: bool) -> dict[int, dict[str, Any]]:
    """The choices of a stream put together, and of a whole answer as they are."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk.choices:
            choice = choices.setdefault(part.index, {"text": "", "logprobs": [], "end": None})
            message: Any = getattr(part, "delta", None) or getattr(part, "message", None)
            choice["text"] += (message.content or "") if is_chat else part.text
            choice["end"] = part.finish_reason or choice["end"]
            if part.logprobs is not None:
                values = part.logprobs.content if is_chat else part.logprobs.token_logprobs
                choice["logprobs"] += [getattr(value, "logprob", value) for value in values]
    return choices


def in_every_way(base_url: str, endpoint: str, arguments: dict[str, Any]) -> list[list[Any]]:
    """The answers of the sync and the async client, whole and streamed; usage comes once."""
    usage = {"stream_options": {"include_usage": True}}

    def create(client: openai.OpenAI | openai.AsyncOpenAI, **more: Any) -> Any:
        target = client.chat.completions if endpoint == "chat" else client.completions
        call: Any = target.create
        return call(model=MODEL, **arguments, **more)

    async def asynchronous() -> list[list[Any]]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="any") as client:
            whole = await create(client)
            return [[whole], [c async for c in await create(client, stream=True, **usage)]]

    with openai.OpenAI(base_url=base_url, api_key="any") as client:
        answers = [[create(client)], list(create(client, stream=True, **usage))]
    answers += asyncio.run(asynchronous())
    for chunks in answers:
        assert [chunk.usage is not None for chunk in chunks].count(True) == 1
        assert chunks[-1].usage.total_tokens == answers[0][0].usage.total_tokens
        assert chunks[0].system_fingerprint
    return answers


@pytest.mark.parametrize("options", CHAT_OPTIONS)
def test_every_option_of_chats(base_url: str, options: dict[str, Any]) -> None:
    arguments = {"messages": MESSAGES, "seed": 11, "max_tokens": 8} | options
    answers = in_every_way(base_url, "chat", arguments)
    first, *others = [joined(chunks, is_chat=True) for chunks in answers]
    assert len(first) == options.get("n", 1)
    assert others == [first] * 3


@pytest.mark.parametrize("options", TEXT_OPTIONS)
def test_every_option_of_texts(base_url: str, options: dict[str, Any]) -> None:
    answers = in_every_way(base_url, "text", {"seed": 11, "max_tokens": 8} | options)
    first, *others = [joined(chunks, is_chat=False) for chunks in answers]
    assert others == [first] * 3
