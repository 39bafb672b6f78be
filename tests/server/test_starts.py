"""Starts and stops in a row, ended in every way there is, leave nothing behind.

A few here; `make soak` asks for 200 (HASTEN_SOAK_STARTS). Over an engine without a model: what is
left behind is processes, sockets and shared memory, not weights.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.helpers.server_process import FAKE, ServerProcess, server_process

NUM_STARTS = int(os.environ.get("HASTEN_SOAK_STARTS", "7"))
SHARED_MEMORY = Path("/dev/shm")
OURS = ("hasten", "psm_", "sem.", "torch_")


def shared_memory() -> set[str]:
    if not SHARED_MEMORY.is_dir():
        return set()
    return {path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith(OURS)}


def ask_in_background(server: ServerProcess) -> threading.Thread:
    """A long request on its way; what becomes of it does not matter here, only that it ends."""
    body = {"prompt": "x", "max_tokens": 3000, "stream": True}

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    return thread


def end_with(number: signal.Signals, *, busy: bool) -> Callable[[ServerProcess], None]:
    def end(server: ServerProcess) -> None:
        asking = ask_in_background(server) if busy else None
        server.process.send_signal(number)
        server.process.wait(20)
        if asking is not None:
            asking.join(20)
            assert not asking.is_alive(), "a client hangs"

    return end


def kill_engine(server: ServerProcess) -> None:
    asking = ask_in_background(server)
    server.engine().kill()
    assert server.process.wait(20) == 1
    asking.join(20)
    assert not asking.is_alive(), "a client hangs"


def interrupt_twice(server: ServerProcess) -> None:
    asking = ask_in_background(server)
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    server.process.send_signal(signal.SIGINT)
    server.process.wait(20)
    asking.join(20)


def children() -> set[psutil.Process]:
    """Everything this process started, servers of other tests included."""
    return set(psutil.Process().children(recursive=True))


WAYS: dict[str, Callable[[ServerProcess], None]] = {
    "SIGTERM": end_with(signal.SIGTERM, busy=False),
    "SIGINT": end_with(signal.SIGINT, busy=False),
    "SIGTERM while busy": end_with(signal.SIGTERM, busy=True),
    "SIGKILL": end_with(signal.SIGKILL, busy=False),
    "SIGKILL while busy": end_with(signal.SIGKILL, busy=True),
    "engine killed": kill_engine,
    "two SIGINT": interrupt_twice,
}
FLAGS = ("build_slow", "--port=0", "--shutdown-timeout-s=0.2")


@pytest.mark.timeout(60 + 60 * NUM_STARTS)
def test_starts_and_stops_leave_nothing(tmp_path: Path) -> None:
    before, bystanders = shared_memory(), children()
    ways = list(WAYS.items())
    for i in range(NUM_STARTS):
        name, end = ways[i % len(ways)]
        with server_process(tmp_path, FLAGS, start=FAKE) as server:
            assert server.url, server.log
            engine = server.engine()
            end(server)
        psutil.wait_procs([engine], timeout=10)
        assert not engine.is_running(), (name, "the engine process lives")
        assert list(tmp_path.iterdir()) == [], (name, "a file is left")
    assert shared_memory() - before == set()
    assert children() <= bystanders
