"""Clients that come and go: whatever they do, the engine ends up as it began."""

from __future__ import annotations

import asyncio
import random
import time

import httpx

from tests.helpers.server_process import ServerProcess

NUM_CLIENTS = 64
NUM_REQUESTS = 500
WORDS = ("river", "stone", "lamp", "window", "bread", "garden", "letter", "summer", "north")


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name))


def free_blocks(http: httpx.Client) -> float:
    return metric(http, "hasten_num_free_blocks")


def wait_idle(http: httpx.Client) -> None:
    for _ in range(600):
        if metric(http, "hasten_num_running") == metric(http, "hasten_num_waiting") == 0:
            return
        time.sleep(0.05)
    raise AssertionError("requests of clients that have gone still run")


async def one_request(client: httpx.AsyncClient, chance: random.Random) -> str:
    """Ask, and leave at some moment: before the first token, in the middle, or at the end."""
    body = {
        "messages": [{"role": "user", "content": " ".join(chance.choices(WORDS, k=20))}],
        "max_tokens": chance.randint(1, 12),
        "n": chance.choice([1, 1, 1, 2]),
        "stream": True,
    }
    try:
        async with asyncio.timeout(chance.choice([0.02, 0.5, 2.0, 60.0])):
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                num_wanted = chance.randint(0, 10)
                num_read = 0
                async for _ in response.aiter_lines():
                    num_read += 1
                    if num_read > num_wanted:
                        return "left"
                return "finished"
    except TimeoutError:
        return "gave up"


async def crowd(url: str) -> list[str]:
    chance = random.Random(5)
    left = iter(range(NUM_REQUESTS))
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:

        async def one_client() -> list[str]:
            return [await one_request(client, chance) for _ in left]

        ends = await asyncio.gather(*(one_client() for _ in range(NUM_CLIENTS)))
    return [end for each in ends for end in each]


def test_blocks_come_back_whenever_clients_leave(server: ServerProcess, http: httpx.Client) -> None:
    wait_idle(http)
    before = free_blocks(http)
    ends = asyncio.run(crowd(server.url))
    assert len(ends) == NUM_REQUESTS
    assert set(ends) == {"left", "finished", "gave up"}
    wait_idle(http)
    assert free_blocks(http) == before
    answer = http.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "still there?"}], "max_tokens": 2},
    )
    assert answer.status_code == 200
