"""Resident memory of a server and its engine while eight streams hold 16k tokens of KV.

    python -m tests.benchmarks.resident_memory [FLAGS OF hasten serve]

Eight prompts of different tokens run at once. What is printed is the largest sum, over all
processes of the server, of their proportional set sizes (a page that several processes map counts
once), and each process's share of it. Source: proc(5), /proc/PID/smaps_rollup.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.helpers.server_process import ServerProcess, server_process

NUM_STREAMS = 8
PROMPT_LEN, NUM_OUTPUT = 1984, 64
INTERVAL_S = 0.1
MIB = 2**20


def ask(server: ServerProcess, seed: int) -> int:
    """One stream of tokens that no other shares; returns how many tokens it held."""
    rng = random.Random(seed)
    body = {
        "model": "SmolLM2-135M-Instruct",
        "prompt": [rng.randrange(1000, 40_000) for _ in range(PROMPT_LEN)],
        "max_tokens": NUM_OUTPUT,
        "ignore_eos": True,
    }
    with server.client() as client:
        usage = client.post("/v1/completions", json=body, timeout=600).raise_for_status().json()
    return int(usage["usage"]["total_tokens"])


def sizes(server: ServerProcess) -> dict[str, int]:
    """Bytes by process: the server, and those that it started."""
    first = psutil.Process(server.process.pid)
    names = {first.pid: "server"}
    names |= {child.pid: f"child {i}" for i, child in enumerate(first.children(recursive=True))}
    return {name: psutil.Process(pid).memory_full_info().pss for pid, name in names.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--port", "0", *sys.argv[1:])
        with (
            server_process(Path(folder), flags) as server,
            ThreadPoolExecutor(NUM_STREAMS) as pool,
        ):
            idle = sizes(server)
            asked = [pool.submit(ask, server, seed) for seed in range(NUM_STREAMS)]
            peak = idle
            while not all(future.done() for future in asked):
                peak = max(peak, sizes(server), key=lambda found: sum(found.values()))
                time.sleep(INTERVAL_S)
            num_tokens = sum(future.result() for future in asked)
    for when, found in (("idle", idle), (f"{num_tokens} tokens", peak)):
        parts = ", ".join(f"{name} {size / MIB:.0f}" for name, size in found.items())
        print(f"{when}: {sum(found.values()) / MIB:.0f} MiB ({parts})")  # noqa: T201 (its output)


if __name__ == "__main__":
    main()
