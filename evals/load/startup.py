"""`hasten bench startup` without its command line: from the command to the first token.

Exercised by `pytest tests/server/test_bench_startup.py`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from hasten.core.options import ConfigurationError, option
from hasten.evals.load.client import LoadClient, Target, first_model
from hasten.evals.load.errors import LoadError
from hasten.evals.load.served import PORT, ServedProcess, ServerCommand, served
from rich.table import Table


@dataclass(frozen=True, slots=True)
class StartupOptions:
    """How often to start."""

    repeats: int = option(5, "starts to measure")
    cold: bool = option(False, "each start with an empty cache folder, as the first one ever")

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ConfigurationError("--repeats must be at least 1")


class Start(msgspec.Struct, frozen=True):
    """One start. Seconds count from the command; memory is that of all processes once ready."""

    ready_s: float
    first_token_s: float
    resident_bytes: int


def hasten_command(flags: Sequence[str]) -> ServerCommand:
    """`hasten serve` with these flags, run by this interpreter."""
    serve = (sys.executable, "-m", "hasten.api.cli", "serve", "--host", "127.0.0.1", "--port", PORT)
    return ServerCommand((*serve, *flags))


def measure_start(command: ServerCommand) -> Start:
    """Start, ask for one token, stop. Raises LoadError."""
    with served(command) as server:
        memory = server.resident_bytes()
        return Start(server.ready_s, asyncio.run(_first_token_s(server)), memory)


def measure_starts(
    flags: Sequence[str], options: StartupOptions, progress: Callable[[], None]
) -> list[Start]:
    """As many starts as asked for. One more comes before them, which fills the caches, unless each
    is to be cold. Raises LoadError.
    """
    command = hasten_command(flags)
    if not options.cold:
        measure_start(command)
    starts = []
    for _ in range(options.repeats):
        starts.append(_cold_start(command) if options.cold else measure_start(command))
        progress()
    return starts


def _cold_start(command: ServerCommand) -> Start:
    with TemporaryDirectory() as folder:
        environment = {**command.environment, "HASTEN_CACHE": folder}
        return measure_start(replace(command, environment=environment))


async def _first_token_s(server: ServedProcess) -> float:
    base_url = server.url + "/v1"
    target = Target(base_url, await first_model(base_url, None))
    async with LoadClient(target, 60, {"temperature": 0}) as client:
        message = {"role": "user", "content": "Hello"}
        record = await client.chat([message], 1, time.perf_counter())
    if not record.ok:
        raise LoadError(f"the server started but does not answer: {record.error}")
    return record.chunk_times[0] - server.begin_s


def startup_table(starts: Iterable[Start]) -> Table:
    """Median and range of each figure."""
    table = Table(title="from the command", title_justify="left")
    table.add_column("")
    for column in ("median", "least", "most"):
        table.add_column(column, justify="right")
    rows = list(starts)
    figures = {
        "ready (s)": [start.ready_s for start in rows],
        "first token (s)": [start.first_token_s for start in rows],
        "resident when ready (MB)": [start.resident_bytes / 1e6 for start in rows],
    }
    for name, values in figures.items():
        shown = (f"{value:.2f}" for value in (median(values), min(values), max(values)))
        table.add_row(name, *shown)
    return table
