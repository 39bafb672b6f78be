"""The official client, sync and async, streaming and not."""

from __future__ import annotations

import asyncio

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
