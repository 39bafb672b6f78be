"""Server-sent events, and work that ends when its client goes.

The response writes to the server directly, without the task group and the queue that a general
streaming response puts between: at many streams this is most of what the API costs per token.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from hasten.api.http.errors import to_api_error
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from starlette.types import Receive, Scope, Send

_T = TypeVar("_T")

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGoneError(Exception):
    """Nobody waits for this answer any more."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, which is cancelled when the client disconnects.

    The request's body must have been read. Raises ClientGoneError.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        # Until its clean-up has run, a cancelled generation still counts as open.
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends events as they come. `first` has been produced already, so it could still fail."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  the interface
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            await while_connected(receive, self._send_events(send))
        except ClientGoneError:
            return

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._rest) as events:
            await _send_part(send, self._first)
            try:
                async for event in events:
                    await _send_part(send, event)
            except Exception as error:  # noqa: BLE001  the status is sent: all that is left is an event
                body = msgspec.json.encode(to_api_error(error).body())
                await _send_part(send, b"data: " + body + b"\n\n")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def start_stream(receive: Receive, events: AsyncGenerator[bytes]) -> EventStream:
    """A response that begins once the first event is there; until then errors have a status."""
    try:
        first = await while_connected(receive, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events)
