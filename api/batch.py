"""A file of requests in OpenAI's batch format, answered into another file.

Each line of the input, {"custom_id", "method", "url", "body"}, becomes one line of the output, in
the order in which the answers come: {"id", "custom_id", "response", "error"}. A line that is no
request becomes one with an `error` that tells its number. What an interrupted run has answered
already is kept and not asked again; answers of status 5xx and 429 are.
Exercised by `pytest tests/unit/api/test_batch.py`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import aiohttp
import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_TRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
_FLEETING = {429, 500, 502, 503, 504}
"""Statuses that may be another at another time."""


class BatchError(ValueError):
    """The batch cannot be run; the message is one line for the user."""


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the input."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: Literal["POST"] = "POST"

    def __post_init__(self) -> None:
        if self.url not in ENDPOINTS:
            raise ValueError(f"url must be one of {', '.join(ENDPOINTS)}, got {self.url!r}")
        if _wants_stream(self.body):
            raise ValueError("body.stream: a batch has whole answers only")


class _MayStream(msgspec.Struct, frozen=True):
    """As much of a body as tells whether its answer is one object."""

    stream: object = None


def _wants_stream(body: msgspec.Raw) -> bool:
    try:
        return msgspec.json.decode(body, type=_MayStream).stream is True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # the server will say what is wrong with it


def _on_one_line(body: bytes) -> msgspec.Raw:
    """A body as JSON; what is none, such as a gateway's page, as a text."""
    try:
        return msgspec.Raw(msgspec.json.format(body.decode(), indent=-1).encode())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(msgspec.json.encode(body.decode(errors="replace")))


class _Answered(msgspec.Struct, frozen=True):
    """As much of a line of the output as tells whether it is final."""

    custom_id: str | None
    response: dict[str, Any] | None

    @property
    def is_final(self) -> bool:
        return self.response is not None and self.response.get("status_code") not in _FLEETING


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request. `line_number` counts from 1."""

    line_number: int
    reason: str
    custom_id: str | None = None

    @property
    def message(self) -> str:
        return f"line {self.line_number}: {self.reason}"


@dataclass(slots=True)
class BatchSummary:
    """How a run went. `statuses` counts the answers of this run."""

    num_kept: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    bad_lines: list[BadLine] = field(default_factory=list)

    @property
    def num_failed(self) -> int:
        failed = sum(count for status, count in self.statuses.items() if status >= 400)
        return failed + len(self.bad_lines)


def read_requests(lines: Iterable[bytes]) -> Iterator[BatchRequest | BadLine]:
    """What each line is; empty lines are nothing, and an id may be there once."""
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            request = msgspec.json.decode(line, type=BatchRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield BadLine(number, str(error))
            continue
        first = seen.setdefault(request.custom_id, number)
        if first == number:
            yield request
        else:
            reason = f"custom_id {request.custom_id!r} is that of line {first}"
            yield BadLine(number, reason, request.custom_id)


def keep_answered(output: Path) -> set[str]:
    """Cut an output of before down to its final answers; returns whose they are.

    Raises BatchError for a file that is no output of a batch.
    """
    if not output.is_file():  # a pipe keeps nothing, and a device may never end
        return set()
    kept: list[bytes] = []
    answered: set[str] = set()
    lines = output.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=_Answered)
        except msgspec.DecodeError as error:
            if number == len(lines):
                continue  # cut off when the run was
            raise BatchError(f"{output}, line {number}: no answer of a batch: {error}") from error
        if found.is_final and found.custom_id is not None:
            kept.append(line + b"\n")
            answered.add(found.custom_id)
    beside = output.with_name(output.name + ".kept")
    beside.write_bytes(b"".join(kept))
    beside.replace(output)
    return answered


class BatchRunner:
    """Sends requests to a server, at most `max_concurrency` at once, and writes the answers."""

    def __init__(
        self, url: str, headers: Mapping[str, str], max_concurrency: int, output: BinaryIO
    ) -> None:
        self._url = url
        self._headers = {**headers, "Content-Type": "application/json"}
        self._max_concurrency = max_concurrency
        self._output = output
        self._summary = BatchSummary()

    async def run(
        self, requests: Iterable[BatchRequest | BadLine], answered: set[str]
    ) -> BatchSummary:
        """Answer all but those that are `answered`. Raises aiohttp.ClientError."""
        try:
            await self._run(requests, answered)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return self._summary

    async def _run(self, requests: Iterable[BatchRequest | BadLine], answered: set[str]) -> None:
        places = asyncio.Semaphore(self._max_concurrency)
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(
                self._url, headers=self._headers, timeout=timeout, connector=connector
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for request in requests:
                if isinstance(request, BadLine):
                    self._write_bad(request)
                elif request.custom_id in answered:
                    self._summary.num_kept += 1
                else:
                    await places.acquire()
                    task = tasks.create_task(self._answer(session, request))
                    task.add_done_callback(lambda _: places.release())

    async def _answer(self, session: aiohttp.ClientSession, request: BatchRequest) -> None:
        status, body = await self._ask(session, request)
        self._summary.statuses[status] += 1
        request_id = uuid.uuid4().hex
        response = {"status_code": status, "request_id": request_id, "body": _on_one_line(body)}
        self._write(request.custom_id, response, None)

    async def _ask(
        self, session: aiohttp.ClientSession, request: BatchRequest
    ) -> tuple[int, bytes]:
        """Status and body, tried again while the server has too much to do."""
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, MAX_TRIES + 1):
            async with session.post(request.url, data=bytes(request.body)) as response:
                status, body = response.status, await response.read()
            if status != 429 or attempt == MAX_TRIES:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return status, body

    def _write_bad(self, bad: BadLine) -> None:
        self._summary.bad_lines.append(bad)
        error = {"code": "invalid_request", "message": bad.message}
        self._write(bad.custom_id, None, error)

    def _write(self, custom_id: str | None, response: Any, error: Any) -> None:
        """One line, out of this process before anything else happens."""
        line = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": custom_id,
            "response": response,
            "error": error,
        }
        self._output.write(msgspec.json.encode(line) + b"\n")
        self._output.flush()
