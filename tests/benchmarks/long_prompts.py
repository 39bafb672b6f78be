"""What benchmarks beside a 7,000-token prompt share: server, prompts, the times of tokens."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path

import httpx

from tests.helpers.server_process import server_process

LONG_LEN, SHORT_LEN, NUM_ROUNDS = 7000, 64, 3
FLAGS = (
    "--port=0",
    "--kv-cache-memory-bytes=600000000",
    "--no-enable-prefix-caching",
    "--spec-method=off",  # streams that repeat themselves would be done before a long prompt is
)


async def token_times(
    client: httpx.AsyncClient, prompt_len: int, max_tokens: int
) -> AsyncGenerator[float]:
    """When each token of an answer came, by the clock of `time.perf_counter`."""
    rng = random.Random(prompt_len)
    prompt = [rng.randrange(1000, 40000) for _ in range(prompt_len)]
    body = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
    }
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for _ in response.aiter_raw():
            yield time.perf_counter()


def run_on_a_server(compare: Callable[[httpx.AsyncClient], Coroutine[None, None, None]]) -> None:
    """`compare` against a server of its own, with the command line's flags."""

    async def run(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=200) as client:
            await compare(client)

    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), (*FLAGS, *sys.argv[1:])) as server,
    ):
        assert server.url, server.log
        asyncio.run(run(server.url))
