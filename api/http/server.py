"""The life of a server process.

1. Bind the port, so that a port in use is known before a model is loaded.
2. Answer HTTP at once: `/health` is well, `/ready` and requests say that the model loads.
3. Start the engine process and load the text half meanwhile; then announce that it serves.
4. On SIGTERM or SIGINT: not ready; open requests may finish until the deadline, then end with the
   reason. A second signal ends at once.
5. When the engine dies: its open requests have failed, `/health` says so for a moment, and the
   process ends with an error.

Exercised by `pytest tests/server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from hasten.api.client import EngineClient
from hasten.api.engine_process import DEFAULT_FACTORY
from hasten.api.http.app import create_app
from hasten.api.http.metrics import Metrics
from hasten.api.http.served_model import ServedModel
from hasten.api.http.service import Phase, Service
from hasten.api.text.chat_template import ChatTemplate
from hasten.api.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.api.text import TextCodec
    from hasten.core.options import EngineOptions, ServerOptions

logger = logging.getLogger("hasten.server")

LINGER_S = 2.0
"""How long `/health` can still be asked why, after the engine has died."""

_OK, _FAILED, _INTERRUPTED = 0, 1, 130


class ServerStartError(RuntimeError):
    """The server cannot start; the message is one line for the user."""


def tokenizer_of(options: EngineOptions) -> TextCodec:
    """The tokeniser that goes with a model."""
    return load_tokenizer(options.model.tokenizer or options.model.model)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server is made of; tests put an engine without a model in."""

    engine_factory: str = DEFAULT_FACTORY
    load_tokenizer: Callable[[EngineOptions], TextCodec] = tokenizer_of


def run_server(engine: EngineOptions, server: ServerOptions, parts: Parts | None = None) -> int:
    """Serve until a signal or the engine's death; returns the exit status.

    Raises ServerStartError, EngineStartError or ValueError when it cannot start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Server(engine, server, parts or Parts()).run())


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ServerStartError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        reason = error.strerror or str(error)
        raise ServerStartError(f"cannot listen on {host}:{port}: {reason}") from error
    return bound


class _QuietUvicorn(uvicorn.Server):
    """uvicorn without its own handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Server:
    def __init__(self, engine: EngineOptions, server: ServerOptions, parts: Parts) -> None:
        self._engine_options = engine
        self._options = server
        self._parts = parts
        self._service = Service(metrics=Metrics(), api_key=server.api_key)
        self._signalled = asyncio.Event()
        self._hurry = asyncio.Event()
        self._begin_s = time.monotonic()

    async def run(self) -> int:
        self._catch_signals()
        with bind_socket(self._options.host, self._options.port) as bound:
            web = self._web_server()
            serving = asyncio.create_task(web.serve(sockets=[bound]))
            try:
                return await self._serve_engine(bound)
            finally:
                web.should_exit = True
                await serving

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._signalled.is_set():
            self._hurry.set()
        self._signalled.set()

    def _web_server(self) -> _QuietUvicorn:
        return _QuietUvicorn(
            uvicorn.Config(
                create_app(self._service),
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    async def _serve_engine(self, bound: socket.socket) -> int:
        """Start the engine and stay until a signal comes or the engine dies."""
        starting = asyncio.create_task(self._start_model())
        if await self._first_of(starting) is not starting:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return _INTERRUPTED
        model = starting.result()
        self._service.become_ready(model)
        self._announce(model, bound)
        dying = asyncio.create_task(model.client.wait_dead())
        try:
            if await self._first_of(dying) is dying:
                return await self._report_death(model)
            return await self._drain(model)
        finally:
            dying.cancel()
            model.close()
            await model.client.close(grace_s=0.0 if self._hurry.is_set() else 5.0)

    async def _first_of(self, task: asyncio.Task[ServedModel] | asyncio.Task[None]) -> object:
        """`task` when it is done before a signal comes, else None."""
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        return task if task.done() else None

    async def _start_model(self) -> ServedModel:
        """The engine's process and this one's text half load at the same time."""
        options = self._engine_options
        text = asyncio.create_task(asyncio.to_thread(self._load_text))
        engine = asyncio.create_task(EngineClient.start(options, self._parts.engine_factory))
        try:
            tokenizer, template = await text
            client = await engine
        except BaseException:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            raise
        return ServedModel(client, tokenizer, template, options, self._service.metrics)

    def _load_text(self) -> tuple[TextCodec, ChatTemplate | None]:
        tokenizer = self._parts.load_tokenizer(self._engine_options)
        return tokenizer, load_template(self._engine_options.model.chat_template, tokenizer)

    def _announce(self, model: ServedModel, bound: socket.socket) -> None:
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        took_s = time.monotonic() - self._begin_s
        logger.info("ready after %.1f s", took_s)
        logger.info("Serving %s on http://%s:%d", model.name, host, bound.getsockname()[1])

    async def _report_death(self, model: ServedModel) -> int:
        logger.error("the engine has died: %s", model.client.failure)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._signalled.wait(), LINGER_S)
        return _FAILED

    async def _drain(self, model: ServedModel) -> int:
        """Let open requests finish until the deadline or a second signal."""
        self._service.phase = Phase.DRAINING
        deadline_s = time.monotonic() + self._options.shutdown_timeout_s
        if self._service.num_active:
            logger.info(
                "shutting down: %d open requests may finish within %g s",
                self._service.num_active,
                self._options.shutdown_timeout_s,
            )
        while self._service.num_active and time.monotonic() < deadline_s:
            if self._hurry.is_set():
                return _INTERRUPTED
            await asyncio.sleep(0.05)
        model.client.abort_all("the server is shutting down")
        return _OK


def load_template(path: str | None, tokenizer: TextCodec) -> ChatTemplate | None:
    """The template from a file, or else the model's own. Raises ValueError or OSError."""
    info = tokenizer.info
    source = info.chat_template if path is None else Path(path).read_text(encoding="utf-8")
    if source is None:
        return None
    tokens = {"bos_token": info.bos_token, "eos_token": info.eos_token, "pad_token": info.pad_token}
    return ChatTemplate(
        source, {name: token for name, token in tokens.items() if token is not None}
    )
