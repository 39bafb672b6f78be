"""What a short prompt waits that arrives while a long one is computed.

    .venv/bin/python -m tests.benchmarks.short_beside_long [--flags of `hasten serve`]

Prints, for a few rounds: the short prompt's time to first token on a quiet server, the longest step
meanwhile, and its time to first token in the middle of a 7,000-token prompt. The bound is twice the
first plus one step.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import aclosing

import httpx

from tests.benchmarks.long_prompts import (
    LONG_LEN,
    NUM_ROUNDS,
    SHORT_LEN,
    run_on_a_server,
    token_times,
)


async def first_token_s(client: httpx.AsyncClient, num_tokens: int) -> float:
    begin = time.perf_counter()
    async with aclosing(token_times(client, num_tokens, max_tokens=4)) as times:
        return await anext(times) - begin


async def compare(client: httpx.AsyncClient) -> None:
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
    run_on_a_server(compare)
