"""A server started as its users start it, and watched from outside: seconds, memory, its end.

Of any make: a command that serves OpenAI's API on a port it is given. Exercised by
`pytest tests/unit/load/test_served.py`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

import psutil
from hasten.evals.load.errors import LoadError

POLL_S = 0.01
PORT = "{port}"
"""Stands in a command for the port that is chosen when it is started."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What to start. `ready_path` answers 200 once requests are served."""

    arguments: Sequence[str]
    ready_path: str = "/ready"
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class ServedProcess:
    """A server that is ready. `ready_s`: seconds from the command to the first 200."""

    url: str
    begin_s: float
    ready_s: float
    process: psutil.Process

    def resident_bytes(self) -> int:
        """Memory of all its processes; what several of them map is counted once."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(_proportional_bytes(process) for process in family)


@contextmanager
def served(command: ServerCommand, timeout_s: float = 300.0) -> Iterator[ServedProcess]:
    """Start a server, wait until it is ready, end it with all its children.

    Raises LoadError with the end of what it printed when it ends or does not answer in time.
    """
    port = _free_port()
    arguments = [argument.replace(PORT, str(port)) for argument in command.arguments]
    url = f"http://127.0.0.1:{port}"
    with TemporaryFile() as output:
        begin_s = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603  the command is its caller's
            arguments,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=command.folder,
            env=os.environ | dict(command.environment),
        )
        try:
            while not _answers(url + command.ready_path):
                elapsed_s = time.perf_counter() - begin_s
                if process.poll() is not None or elapsed_s > timeout_s:
                    output.seek(0)
                    raise LoadError(_failure(process, elapsed_s, output.read()))
                time.sleep(POLL_S)
            ready_s = time.perf_counter() - begin_s
            yield ServedProcess(url, begin_s, ready_s, psutil.Process(process.pid))
        finally:
            _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310  always http
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _failure(process: subprocess.Popen[bytes], elapsed_s: float, output: bytes) -> str:
    code = process.poll()
    what = f"was not ready after {elapsed_s:.0f} s" if code is None else f"ended with code {code}"
    last_lines = output.decode(errors="replace").strip().splitlines()[-5:]
    return f"the server {what}: {' | '.join(last_lines) or 'it printed nothing'}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, and kill what is still there, children included."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in family:
        if child.is_running():
            child.kill()


def _proportional_bytes(process: psutil.Process) -> int:
    """Proportional set size where the system tells it (Linux), else resident set size."""
    try:
        memory = process.memory_full_info()
        return int(getattr(memory, "pss", memory.rss))
    except psutil.NoSuchProcess:
        return 0
