"""A server as a process of its own, as a user would start it.

HASTEN_TEST_SERVER_ARGS adds flags to every server with a model, to prove it under others:
`HASTEN_TEST_SERVER_ARGS=--spec-method=auto pytest tests/server`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parents[2]
SERVE = ("-m", "hasten.api.cli", "serve")
FAKE = ("-m", "tests.helpers.fake_server")
_MORE_ARGS = shlex.split(os.environ.get("HASTEN_TEST_SERVER_ARGS", ""))
_SERVING = re.compile(r"Serving .* on (https?://[^\s\"]+)")


@dataclass(slots=True)
class ServerProcess:
    """A running server. `log` grows as it speaks."""

    process: subprocess.Popen[str]
    socket_folder: Path
    log: list[str] = field(default_factory=list)
    url: str = ""
    spoken: threading.Event = field(default_factory=threading.Event)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def engine(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def left_behind(self) -> list[str]:
        """Socket folders of the server that are still there."""
        return [path.name for path in self.socket_folder.glob("hasten-*")]

    def follow(self) -> None:
        """Read the log to its end; `spoken` is set once it serves or has ended."""
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line.rstrip())
                if found := _SERVING.search(line):
                    self.url = found[1]
                    self.spoken.set()
        self.spoken.set()


@contextmanager
def server_process(
    tmp_path: Path, flags: Sequence[str] = (), *, start: Sequence[str] = SERVE
) -> Iterator[ServerProcess]:
    """Start, wait until it serves (or has failed to), and make sure that it has ended after."""
    process = subprocess.Popen(
        [sys.executable, *start, *(_MORE_ARGS if start is SERVE else ()), *flags],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    server = ServerProcess(process, tmp_path)
    reader = threading.Thread(target=server.follow)
    reader.start()
    try:
        assert server.spoken.wait(120), "the server said nothing"
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)
        reader.join()
