"""Runs a workload against a server, open or closed loop, and watches its own punctuality.

A load generator that falls behind measures itself. Every run therefore records how late requests
were sent and how long the event loop stalled, and `LoadRun.check_punctual` refuses a result that
the client could not keep up with. Exercised by `pytest tests/unit/load`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from hasten.evals.load.client import LoadClient, Message, RequestRecord
from hasten.evals.load.errors import LoadError
from hasten.evals.load.workload import Conversation, Workload

STALL_PROBE_S = 0.005
"""How often the event loop is asked whether it is on time."""
MAX_STALL_S = 0.025
"""The 99th percentile of stalls beyond which latencies measured here mean nothing."""

Progress = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The raw outcome of one run."""

    workload: Workload
    records: list[RequestRecord]
    duration_s: float
    stalls_s: list[float]

    @property
    def stall_p99_s(self) -> float:
        return float(np.percentile(self.stalls_s, 99)) if self.stalls_s else 0.0

    def check_punctual(self) -> None:
        """Raise LoadError when the client was the bottleneck."""
        if self.stall_p99_s > MAX_STALL_S:
            raise LoadError(
                f"the client could not keep up: its event loop stalled for "
                f"{self.stall_p99_s * 1e3:.0f} ms at the 99th percentile "
                f"(at most {MAX_STALL_S * 1e3:.0f} ms is trusted); run it with a core to itself"
            )


async def closed_loop(
    client: LoadClient, workload: Workload, concurrency: int, progress: Progress
) -> LoadRun:
    """`concurrency` clients, each starting its next conversation once the last has ended."""
    if concurrency < 1:
        raise LoadError(f"concurrency must be at least 1, got {concurrency}")
    conversations = iter(workload.conversations)
    records: list[RequestRecord] = []

    async def work(queue: Iterator[Conversation]) -> None:
        for conversation in queue:
            await _converse(client, conversation, perf_counter(), records, progress)

    workers = min(concurrency, len(workload.conversations))
    return await _watched(workload, records, [work(conversations) for _ in range(workers)])


async def open_loop(
    client: LoadClient, workload: Workload, arrivals_s: Sequence[float], progress: Progress
) -> LoadRun:
    """Conversation i starts `arrivals_s[i]` seconds into the run, whatever became of the others."""
    records: list[RequestRecord] = []
    start = perf_counter()

    async def work(conversation: Conversation, at_s: float) -> None:
        await asyncio.sleep(start + at_s - perf_counter())
        await _converse(client, conversation, start + at_s, records, progress)

    pairs = zip(workload.conversations, arrivals_s, strict=True)
    return await _watched(workload, records, [work(*pair) for pair in pairs])


async def _watched(
    workload: Workload, records: list[RequestRecord], work: Sequence[Coroutine[None, None, None]]
) -> LoadRun:
    stalls: list[float] = []
    probe = asyncio.create_task(_probe_stalls(stalls))
    start = perf_counter()
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in work:
                tasks.create_task(coroutine)
        return LoadRun(workload, records, perf_counter() - start, stalls)
    finally:
        probe.cancel()
        with suppress(asyncio.CancelledError):
            await probe


async def _probe_stalls(stalls: list[float]) -> None:
    while True:
        asked = perf_counter()
        await asyncio.sleep(STALL_PROBE_S)
        stalls.append(perf_counter() - asked - STALL_PROBE_S)


async def _converse(
    client: LoadClient,
    conversation: Conversation,
    scheduled_s: float,
    records: list[RequestRecord],
    progress: Progress,
) -> None:
    """All turns of one conversation; it ends at the first that fails."""
    messages: list[Message] = []
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.content})
        record = await client.chat(messages, turn.max_tokens, scheduled_s)
        records.append(record)
        progress(record)
        if not record.ok:
            return
        messages.append({"role": "assistant", "content": record.text})
        scheduled_s = perf_counter()
