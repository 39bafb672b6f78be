"""A thousand clients at once, again and again: who gets in, how soon, and what it leaves behind.

    .venv/bin/python -m tests.benchmarks.bursts [--clients 1000] [--bursts 5] [--wait-ms 3000]

Prints, for each burst against a queue of 64: how many were answered and refused, the first token of
those let in (p50, p99, longest), how long a refusal took, and the memory of both processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from tests.helpers.server_process import server_process

MAX_TOKENS = 40


class Answer(NamedTuple):
    """What one client got, and after how many seconds something came."""

    status: int
    first_s: float


def request_bytes(idx: int) -> bytes:
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": f"{idx}: " + "word " * (idx % 30)}],
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def ask(host: str, port: int, idx: int) -> Answer:
    """Over a plain socket: a client library would take longer for a thousand than the server."""
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request_bytes(idx))
        status = int((await reader.readline()).split()[1])
        first_s = time.perf_counter() - begin
        while line := await reader.readline():
            if b'"content":"' in line and b'"content":""' not in line:
                first_s = time.perf_counter() - begin
                break
        await reader.read()
    finally:
        writer.close()
    return Answer(status, first_s)


async def burst(url: str, num_clients: int) -> list[Answer]:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    asked = (ask(address.hostname, address.port, i) for i in range(num_clients))
    return await asyncio.gather(*asked)


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
