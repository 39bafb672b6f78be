"""A server of one's own for the length of a `with` block, on a free port of the loopback.

It runs in a thread of this process, so that it cannot outlive it whatever happens.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hasten.api.cli.chat_client import ChatClient
from hasten.api.http.server import Parts, Server
from hasten.core.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.options import EngineOptions


class _ServerThread(threading.Thread):
    """Runs a server; `url` resolves once it serves, or fails as it failed to start."""

    def __init__(self, server: Server) -> None:
        super().__init__(name="server")
        self.url: Future[str] = Future()
        self._server = server
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            serving = self._server.run(catch_signals=False, on_ready=self.url.set_result)
            self._loop.run_until_complete(serving)
        except Exception as error:  # noqa: BLE001  the other thread raises it
            self._fail(error)
        finally:
            self._fail(RuntimeError("the server was stopped"))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def stop(self) -> None:
        if self.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop)
        self.join()

    def _fail(self, error: Exception) -> None:
        if not self.url.done():
            self.url.set_exception(error)


@contextmanager
def local_server(
    engine: EngineOptions, parts: Parts | None = None, *, hide_log: bool = False
) -> Iterator[ChatClient]:
    """Serve `engine` and yield a client of it. Raises what `run_server` raises."""
    key = secrets.token_urlsafe()
    options = ServerOptions(port=0, api_key=key, shutdown_timeout_s=0.0)
    thread = _ServerThread(Server(engine, options, parts or Parts(hide_engine_log=hide_log)))
    thread.start()
    try:
        yield ChatClient(thread.url.result(), key)
    finally:
        thread.stop()
