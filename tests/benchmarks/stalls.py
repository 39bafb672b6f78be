"""How long running streams pause while a long prompt is computed beside them.

    .venv/bin/python -m tests.benchmarks.stalls [--flags of `hasten serve`]

Prints, for a few rounds of a 7,000-token prompt beside three streams, the time between two of their
tokens: median, 99th percentile, and the longest, which `--max-stall-ms` bounds (250 by default).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from itertools import pairwise

import httpx

from tests.benchmarks.long_prompts import (
    LONG_LEN,
    NUM_ROUNDS,
    SHORT_LEN,
    run_on_a_server,
    token_times,
)

NUM_STREAMS = 3


async def read(client: httpx.AsyncClient, prompt_len: int, max_tokens: int) -> list[float]:
    return [moment async for moment in token_times(client, prompt_len, max_tokens)]


async def compare(client: httpx.AsyncClient) -> None:
    for idx in range(NUM_ROUNDS):
        streams = [asyncio.create_task(read(client, SHORT_LEN, 100)) for _ in range(NUM_STREAMS)]
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
    run_on_a_server(compare)
