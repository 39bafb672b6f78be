"""`--restart-engine`: an engine that dies is replaced, and the server says so meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
from hasten.api.http.server import next_pause

from tests.helpers.server_process import FAKE, server_process

PATIENCE_S = 60.0


def wait_for(client: httpx.Client, path: str, status: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while client.get(path).status_code != status:
        assert time.monotonic() < deadline, f"{path} does not become {status}"
        time.sleep(0.05)


def test_a_killed_engine_comes_back(tmp_path: Path) -> None:
    flags = ("build_sluggish", "--port=0", "--restart-engine")
    body = {"prompt": "abc", "max_tokens": 3}
    with server_process(tmp_path, flags, start=FAKE) as server, server.client() as client:
        assert server.url, server.log
        assert client.post("/v1/completions", json=body).status_code == 200
        server.engine().kill()
        wait_for(client, "/health", 503)
        assert client.post("/v1/completions", json=body).status_code == 503
        wait_for(client, "/ready", 200)
        assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "ab"
        assert "hasten_engine_restarts_total 1.0" in client.get("/metrics").text


def test_restarts_wait_longer_each_time_and_forgive() -> None:
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause(pauses[-1], served_s=1.0))
    assert pauses[1:4] == [0.5, 1.0, 2.0]
    assert pauses[-1] == 60.0
    assert next_pause(60.0, served_s=3600.0) == 0.0
