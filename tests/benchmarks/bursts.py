"""A thousand clients at once, again and again: who gets in, how soon, and what it leaves behind.

    .venv/bin/python -m tests.benchmarks.bursts [--clients 1000] [--bursts 5] [--wait-ms 3000]

Prints, for each burst against a queue of 64: how many were answered and refused, the first token of
those let in (p50, p99, longest), how long a refusal took, and the memory of both processes.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from tests.helpers.server_process import server_process

MAX_TOKENS = 40


class Answer(NamedTuple):
    """What one client got, and after how many seconds something came."""

    status: int
    first_s: float


async def ask(client: httpx.AsyncClient, idx: int) -> Answer:
    body = {
        "messages": [{"role": "user", "content": f"{idx}: " + "word " * (idx % 30)}],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    begin = time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = response.aiter_raw()
        if response.status_code == 200:
            await anext(chunks)  # the role, before any token
            await anext(chunks)
        first_s = time.perf_counter() - begin
        async for _ in chunks:
            pass
    return Answer(response.status_code, first_s)


async def burst(url: str, num_clients: int) -> list[Answer]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        return await asyncio.gather(*(ask(client, i) for i in range(num_clients)))


def memory_mib(pid: int) -> float:
    """Proportional set size of a process and its children."""
    root = psutil.Process(pid)
    family = [root, *root.children(recursive=True)]
    return float(sum(process.memory_full_info().pss for process in family)) / 2**20


def describe(answers: list[Answer]) -> str:
    let_in = sorted(answer.first_s for answer in answers if answer.status == 200)
    refused = [answer.first_s for answer in answers if answer.status == 429]
    assert len(let_in) + len(refused) == len(answers), {answer.status for answer in answers}
    p99 = let_in[int(0.99 * (len(let_in) - 1))]
    return (
        f"{len(let_in)} answered, first token p50 {statistics.median(let_in):.2f} "
        f"p99 {p99:.2f} longest {let_in[-1]:.2f} s; {len(refused)} refused within "
        f"{max(refused, default=0.0):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--wait-ms", type=float, default=3000.0)
    given = parser.parse_args()
    flags = (
        "--port=0",
        "--max-model-len=512",
        "--max-num-seqs=8",
        "--max-queue-len=64",
        f"--max-queue-wait-ms={given.wait_ms}",
        "--kv-cache-memory-bytes=100000000",
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), flags) as server,
        server.client() as client,
    ):
        assert server.url, server.log
        for idx in range(given.bursts):
            told = describe(asyncio.run(burst(server.url, given.clients)))
            live = client.get("/v1/live").json()
            assert live["num_free_blocks"] == live["num_total_blocks"], live
            assert live["num_open_requests"] == 0, live
            memory = memory_mib(server.process.pid)
            sys.stdout.write(f"burst {idx + 1}: {told}; {memory:.0f} MiB\n")


if __name__ == "__main__":
    main()
