"""What a short prompt waits that arrives while a long one is computed.

    .venv/bin/python -m tests.benchmarks.short_beside_long [--flags of `hasten serve`]

Prints, for a few rounds: the short prompt's time to first token on a quiet server, the longest step
meanwhile, and its time to first token in the middle of a 7,000-token prompt. The bound is twice the
first plus one step.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.helpers.server_process import server_process

LONG_LEN, SHORT_LEN, NUM_ROUNDS = 7000, 64, 3
FLAGS = ("--port=0", "--kv-cache-memory-bytes=600000000", "--no-enable-prefix-caching")


async def first_token_s(client: httpx.AsyncClient, num_tokens: int) -> float:
    rng = random.Random(num_tokens)
    prompt = [rng.randrange(1000, 40000) for _ in range(num_tokens)]
    body = {"prompt": prompt, "max_tokens": 4, "stream": True, "temperature": 0}
    begin = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for _ in response.aiter_raw():
            return time.perf_counter() - begin
    raise AssertionError("no token came")


async def compare(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        await first_token_s(client, SHORT_LEN)
        quiet: list[float] = []
        beside: list[float] = []
        alone: list[float] = []
        for _ in range(NUM_ROUNDS):
            quiet.append(await first_token_s(client, SHORT_LEN))
            long = asyncio.create_task(first_token_s(client, LONG_LEN))
            await asyncio.sleep(alone[-1] / 3 if alone else 1.0)
            assert not long.done(), "the long prompt was too quick"
            beside.append(await first_token_s(client, SHORT_LEN))
            alone.append(await long)
        for name, seconds in (("quiet", quiet), ("beside", beside), ("long", alone)):
            values = " ".join(f"{1000 * value:.0f}" for value in seconds)
            line = f"{name:7} median {1000 * statistics.median(seconds):6.0f} ms   {values}"
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), (*FLAGS, *sys.argv[1:])) as server,
    ):
        assert server.url, server.log
        asyncio.run(compare(server.url))
