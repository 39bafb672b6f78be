"""One streamed request to an OpenAI-compatible server, timed as its client sees it.

Times are seconds of one monotonic clock, read when a chunk leaves the socket. The number of
tokens in a chunk is what the server says (`usage` at the end gives their sum); a chunk of several
tokens counts as that many gaps of equal length, so that the gaps of a request always add up to
its decode time. Exercised by `pytest tests/unit/load`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Self

import aiohttp

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """A server and the model to ask for."""

    base_url: str  # without a trailing slash, with /v1
    model: str
    api_key: str | None = None


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request. `chunk_times` has one entry per chunk that carried text."""

    scheduled_s: float
    sent_s: float
    chunk_times: list[float] = field(default_factory=list)
    chunk_sizes: list[int] = field(default_factory=list)  # bytes of text
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    end_s: float = 0.0
    text: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and bool(self.chunk_times)

    @property
    def ttft_s(self) -> float:
        return self.chunk_times[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.sent_s

    @property
    def decode_s(self) -> float:
        return self.chunk_times[-1] - self.chunk_times[0]

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None with fewer than two tokens."""
        if self.num_output_tokens < 2:
            return None
        return self.decode_s / (self.num_output_tokens - 1)


def tokens_per_chunk(record: RequestRecord) -> list[int]:
    """The output tokens, shared out over the chunks by their bytes of text; at least 1 each.

    Exact where a server sends a token per chunk, as most do.
    """
    num_chunks, num_tokens = len(record.chunk_times), record.num_output_tokens
    if num_tokens <= num_chunks:
        return [1] * num_chunks
    spare, total = num_tokens - num_chunks, max(sum(record.chunk_sizes), 1)
    counts, given, seen = [], 0, 0
    for size in record.chunk_sizes:
        seen += size
        share = spare * seen // total
        counts.append(1 + share - given)
        given = share
    return counts


def token_gaps(record: RequestRecord) -> list[float]:
    """Inter-token latencies in seconds, one per token that has a chunk before it."""
    gaps: list[float] = []
    counts = tokens_per_chunk(record)[1:]
    for before, after, count in zip(
        record.chunk_times, record.chunk_times[1:], counts, strict=False
    ):
        gaps += [(after - before) / count] * count
    return gaps


class LoadClient:
    """Connections to one server. Use as an async context manager."""

    def __init__(self, target: Target, timeout_s: float, sampling: dict[str, Any]) -> None:
        self._target = target
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._sampling = sampling
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._target.api_key or ''}"}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=self._timeout, headers=headers
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, scheduled_s: float
    ) -> RequestRecord:
        """Send one request and read its stream to the end; failures end up in the record."""
        record = RequestRecord(scheduled_s=scheduled_s, sent_s=perf_counter())
        body = {
            "model": self._target.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._sampling,
        }
        try:
            await self._stream(body, record)
        except TimeoutError:
            record.error = "timed out"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            record.error = f"{type(error).__name__}: {error}"
        record.end_s = perf_counter()
        if record.error is None and not record.chunk_times:
            record.error = "the stream held no text"
        return record

    async def _stream(self, body: dict[str, Any], record: RequestRecord) -> None:
        if self._session is None:
            raise RuntimeError("use LoadClient as an async context manager")
        url = f"{self._target.base_url}/chat/completions"
        parts: list[str] = []
        async with self._session.post(url, json=body) as response:
            if response.status != 200:
                text = (await response.text())[:300]
                record.error = f"HTTP {response.status}: {text}"
                return
            async for payload in _events(response.content):
                now = perf_counter()
                event = json.loads(payload)
                if "error" in event:
                    record.error = str(event["error"])[:300]
                    return
                delta = _delta_text(event)
                if delta:
                    record.chunk_times.append(now)
                    record.chunk_sizes.append(len(delta.encode()))
                    parts.append(delta)
                _read_usage(event, record)
        record.text = "".join(parts)
        record.num_output_tokens = record.num_output_tokens or len(record.chunk_times)


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The payloads of a server-sent event stream, up to `[DONE]`."""
    async for line in stream:
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            return
        yield payload


def _delta_text(event: dict[str, Any]) -> str:
    choices = event.get("choices") or []
    if not choices:
        return ""
    delta = choices[0].get("delta") or {}
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


def _read_usage(event: dict[str, Any], record: RequestRecord) -> None:
    usage = event.get("usage")
    if not usage:
        return
    record.num_prompt_tokens = usage.get("prompt_tokens", 0)
    record.num_output_tokens = usage.get("completion_tokens", 0)
    details = usage.get("prompt_tokens_details") or {}
    record.num_cached_tokens = details.get("cached_tokens") or 0


async def first_model(base_url: str, api_key: str | None) -> str:
    """The id of the first model that a server lists. Raises aiohttp.ClientError."""
    headers = {"Authorization": f"Bearer {api_key or ''}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), headers=headers) as session,
        session.get(f"{base_url}/models", raise_for_status=True) as response,
    ):
        models = (await response.json())["data"]
    return str(models[0]["id"])


async def wait_ready(base_url: str, timeout_s: float) -> None:
    """Return once the server lists its models. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                await first_model(base_url, None)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.05)
            else:
                return
