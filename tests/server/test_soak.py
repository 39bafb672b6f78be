"""All sorts of clients at once, for a while: nothing gets stuck, nothing is left behind.

Seconds in CI; `HASTEN_SOAK_MINUTES=60` (`make soak`) watches memory too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Awaitable, Callable

import httpx
import psutil
import pytest

from tests.helpers.server_process import ServerProcess

MINUTES = float(os.environ.get("HASTEN_SOAK_MINUTES", "0.1"))
NUM_CLIENTS = 12
CHAT = "/v1/chat/completions"
MEMORY_SLACK = 1.05
WARM_UP = 0.2
"""Of the time, until caches are full and memory is compared with what it was then."""


def body(rng: random.Random, *, stream: bool) -> dict[str, object]:
    words = " ".join(rng.choice(["red", "green", "blue"]) for _ in range(rng.randrange(1, 60)))
    return {
        "messages": [{"role": "user", "content": words}],
        "max_tokens": rng.randrange(1, 24),
        "temperature": rng.choice([0, 1]),
        "n": rng.choice([1, 1, 2]),
        "stream": stream,
    }


async def whole(client: httpx.AsyncClient, rng: random.Random) -> None:
    answer = await client.post(CHAT, json=body(rng, stream=False))
    assert answer.status_code in (200, 429)


async def streamed(client: httpx.AsyncClient, rng: random.Random) -> None:
    answer = await client.post(CHAT, json=body(rng, stream=True))
    assert answer.status_code == 429 or answer.text.endswith("data: [DONE]\n\n")


async def cancelled(client: httpx.AsyncClient, rng: random.Random) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(rng.random() * 0.3):
            await client.post(CHAT, json=body(rng, stream=rng.random() < 0.5))


async def slow_reader(client: httpx.AsyncClient, rng: random.Random) -> None:
    async with client.stream("POST", CHAT, json=body(rng, stream=True)) as answer:
        async for _ in answer.aiter_bytes(64):
            await asyncio.sleep(rng.random() * 0.02)


async def malformed(client: httpx.AsyncClient, rng: random.Random) -> None:
    text = json.dumps(body(rng, stream=False))
    cut = text[: rng.randrange(len(text))]
    assert (await client.post(CHAT, content=cut)).status_code == 400


async def oversize(client: httpx.AsyncClient, rng: random.Random) -> None:
    messages = [{"role": "user", "content": "word " * rng.randrange(2000, 20000)}]
    assert (await client.post(CHAT, json={"messages": messages})).status_code == 400


async def half_closed(client: httpx.AsyncClient, rng: random.Random) -> None:
    """Sends a request, or half of one, and closes its side."""
    host, port = client.base_url.host, client.base_url.port
    content = json.dumps(body(rng, stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(host, port)
    message = head + content
    writer.write(message[: rng.choice([len(message), len(message) // 2])])
    with contextlib.suppress(OSError):
        writer.write_eof()
        async with asyncio.timeout(60):
            await reader.read()
    writer.close()


KINDS: list[Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]] = [
    whole, streamed, cancelled, slow_reader, malformed, oversize, half_closed,
]  # fmt: skip


async def soak(server: ServerProcess) -> list[float]:
    """Memory of both processes, in bytes, at the end of the warm-up and at the end."""
    end = time.monotonic() + 60 * MINUTES
    memory = []

    async def one_client(seed: int, until: float) -> None:
        rng = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            while time.monotonic() < until:
                await rng.choice(KINDS)(client, rng)

    begin = time.monotonic()
    for part, until in enumerate((begin + WARM_UP * (end - begin), end)):
        await asyncio.gather(*(one_client(100 * part + i, until) for i in range(NUM_CLIENTS)))
        processes = [psutil.Process(server.process.pid), server.engine()]
        memory.append(float(sum(process.memory_info().rss for process in processes)))
    return memory


@pytest.mark.timeout(60 * MINUTES + 300)
def test_nothing_is_stuck_or_left_behind(server: ServerProcess) -> None:
    before, after = asyncio.run(soak(server))
    with server.client() as client:
        deadline = time.monotonic() + 60
        while (live := client.get("/v1/live").json())["num_open_requests"]:
            assert time.monotonic() < deadline, "a request is stuck"
            time.sleep(0.1)
        assert (live["num_running"], live["num_waiting"]) == (0, 0)
        assert live["num_free_blocks"] == live["num_total_blocks"]
        assert client.get("/health").status_code == 200
    if MINUTES >= 10:
        assert after <= MEMORY_SLACK * before
