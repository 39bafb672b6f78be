"""Connections of clients that do not go on sending, or reading, are closed.

A request that takes too long to arrive is answered with 408 (`api.http.body`) where that is still
possible; this is for what no end point sees: headers that never end, what is no HTTP, and the rest
of a body that was refused.
Exercised by `pytest tests/unit/api/test_slow_clients.py tests/unit/api/test_raw_http.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hasten.api.http.body import BODY_LIMIT_S
from hasten.api.http.errors import ApiError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

ARRIVAL_LIMIT_S = BODY_LIMIT_S + 5.0
"""From a connection, or from the first byte of a request on one, to the request's last byte."""


WRITE_LIMIT_S = 30.0
"""A client that has read nothing for so long, while something waits for it, is dropped."""

GOODBYE_S = 0.5
"""How long a client without a request may take to say goodbye, when the server ends."""

MAX_HEAD_BYTES = 64 * 2**10
"""Beyond what came with its first byte: the parser keeps a request's head, and what follows its
body, without a limit."""


class PunctualProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, with time limits for the arrival of requests and the reading of answers.

    An answer waits in the engine's client (bounded there) while the system's buffers and
    uvicorn's, 64 KiB, are full.
    """

    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _num_head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        self._written()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            message = f"the request's headers have more than {MAX_HEAD_BYTES} bytes"
            self._refuse(ApiError(431, message, code="headers_too_large"))

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _unsupported_upgrade_warning(self) -> None:
        """No warning: whoever asks for a protocol that is not spoken here is answered in HTTP."""

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            # TLS waits for the goodbye of a client that need not be listening.
            self.loop.call_later(GOODBYE_S, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not `close`, which would go on waiting for what is to be read.
        self._write_deadline = self.loop.call_later(WRITE_LIMIT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._written()
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_head_bytes = 0
        self._expect()

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_head_bytes = 0
        self._arrived()
        super().on_message_complete()

    def _refuse(self, error: ApiError) -> None:
        """Say why, unless an answer is being written, and close."""
        if self.cycle is None or self.cycle.response_complete:
            body = msgspec.json.encode(error.body())
            lines = (
                b"content-type: application/json",
                b"content-length: %d" % len(body),
                b"connection: close",
                b"\r\n",
            )
            self.transport.write(STATUS_LINE[error.status] + b"\r\n".join(lines) + body)
        self.transport.close()

    def _expect(self) -> None:
        self._arrived()
        self._deadline = self.loop.call_later(ARRIVAL_LIMIT_S, self.transport.close)

    def _written(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
