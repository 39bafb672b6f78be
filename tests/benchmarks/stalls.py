"""How long running streams pause while a long prompt is computed beside them.

    .venv/bin/python -m tests.benchmarks.stalls [--flags of `hasten serve`]

Prints, for a few rounds of a 7,000-token prompt beside three streams, the time between two of their
tokens: median, 99th percentile, and the longest, which `--max-stall-ms` bounds (250 by default).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import httpx

from tests.helpers.server_process import server_process

LONG_LEN, SHORT_LEN, NUM_STREAMS, NUM_ROUNDS = 7000, 64, 3, 3
FLAGS = ("--port=0", "--kv-cache-memory-bytes=600000000", "--no-enable-prefix-caching")


async def read(client: httpx.AsyncClient, prompt_len: int, max_tokens: int) -> list[float]:
    """When each token came."""
    rng = random.Random(prompt_len)
    prompt = [rng.randrange(1000, 40000) for _ in range(prompt_len)]
    body = {"prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    times: list[float] = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        async for _ in response.aiter_raw():
            times.append(time.perf_counter())  # noqa: PERF401 (the moment counts)
    return times


async def compare(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=200) as client:
        for idx in range(NUM_ROUNDS):
            streams = [
                asyncio.create_task(read(client, SHORT_LEN, 100)) for _ in range(NUM_STREAMS)
            ]
            await asyncio.sleep(0.5)
            begin = time.perf_counter()
            await read(client, LONG_LEN, 2)
            seconds = time.perf_counter() - begin
            gaps = []
            for times in await asyncio.gather(*streams):
                gaps += [b - a for a, b in pairwise(times)]
            gaps.sort()
            p99 = gaps[int(0.99 * (len(gaps) - 1))]
            line = f"gaps p50 {1000 * statistics.median(gaps):.0f} p99 {1000 * p99:.0f} longest"
            line = f"round {idx + 1}: {line} {1000 * gaps[-1]:.0f} ms; long prompt {seconds:.1f} s"
            sys.stdout.write(line + "\n")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), (*FLAGS, *sys.argv[1:])) as server,
    ):
        assert server.url, server.log
        asyncio.run(compare(server.url))
