"""How long the streams of others pause while a server is sent what is bad or large.

    hasten serve &
    python -m tests.benchmarks.other_streams http://127.0.0.1:8000

One stream runs all the while; beside it, each kind of input is sent three times from another
process. "quiet" is the longest gap between two events before that, "beside" the longest during it:
the difference is what the input cost others. No test depends on it.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

MB = 2**20
NUM_TIMES = 3
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SEND = """
import sys, time, httpx
with httpx.Client(timeout=60) as client:
    print("ready", flush=True)
    for line in sys.stdin:
        url, path = line.split()
        body = open(path, "rb").read()
        begin = time.perf_counter()
        answer = client.post(url, content=body)
        print(answer.status_code, round(1000 * (time.perf_counter() - begin)), "ms", flush=True)
"""


def inputs() -> dict[str, tuple[str, Any]]:
    """By name: the end point, and the body as bytes or as what is to become JSON."""
    words = Path(__file__).read_text(encoding="utf-8").split()
    prose = " ".join(random.Random(0).choices(words, k=250_000))[:MB]
    user = {"role": "user", "content": prose}
    return {
        "1 MB chat": (CHAT, {"messages": [user]}),
        "1 MB text": (TEXT, {"prompt": prose}),
        "1 MB without a space": (TEXT, {"prompt": "x" * MB}),
        "1 MB of spaces": (TEXT, {"prompt": " " * MB}),
        "1 MB of emoji": (TEXT, {"prompt": "🎉" * (MB // 4)}),
        "1 MB of token ids": (TEXT, {"prompt": [12] * (MB // 4)}),
        "1 MB of messages": (CHAT, {"messages": [user | {"content": "x"}] * 30_000}),
        "1 MB to tokenise": ("/tokenize", {"prompt": prose}),
        "50 MB": (TEXT, b" " * (50 * MB)),
        "10,000 deep": (TEXT, b'{"logit_bias":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    }


async def stream(client: httpx.AsyncClient, gaps: list[float]) -> None:
    """One answer after the other; the seconds between events go to `gaps`."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": 256,
        "ignore_eos": True,
        "stream": True,
    }
    while True:
        async with client.stream("POST", CHAT, json=body) as response:
            last_s = None
            async for line in response.aiter_lines():
                now_s = time.perf_counter()
                if line and last_s is not None:
                    gaps.append(now_s - last_s)
                last_s = now_s if line else last_s


class Sender:
    """Another process, whose work does not stop this one's clock. It starts before the clock."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Sender:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-c", SEND)
        sender = cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        assert await sender._read() == "ready"
        return sender

    async def send(self, url: str, path: Path) -> str:
        """The status and how long the answer took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{url} {path}\n".encode())
        await self._process.stdin.drain()
        return await self._read()

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def _read(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


async def measure(base_url: str, folder: Path) -> None:
    sender = await Sender.start()
    for name, (endpoint, content) in inputs().items():
        path = folder / "body"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        gaps: list[float] = []
        async with httpx.AsyncClient(base_url=base_url, timeout=60) as client:
            streaming = asyncio.create_task(stream(client, gaps))
            await asyncio.sleep(3.0)
            quiet, num_quiet = max(gaps, default=0.0), len(gaps)
            answers = [await sender.send(base_url + endpoint, path) for _ in range(NUM_TIMES)]
            beside = max(gaps[num_quiet:], default=0.0)
            streaming.cancel()
            await asyncio.gather(streaming, return_exceptions=True)
        figures = f"quiet {quiet * 1e3:5.0f} ms   beside {beside * 1e3:5.0f} ms"
        print(f"{name:22} {figures}   {answers[-1]}", flush=True)  # noqa: T201  the output
    await sender.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(sys.argv[1].rstrip("/"), Path(folder)))


if __name__ == "__main__":
    main()
