"""The life of a server process.

1. Bind the port, so that a port in use is known before a model is loaded.
2. Answer HTTP at once: `/health` is well, `/ready` and requests say that the model loads.
3. Start the engine process and load the text half meanwhile; look up its evaluation where one is
   required; then announce that it serves.
4. On SIGTERM or SIGINT: not ready; open requests may finish until the deadline, then end with the
   reason. A second signal ends at once.
5. When the engine dies: its open requests have failed, `/health` says so for a moment, and the
   process ends with an error; or, with `--restart-engine`, until another has taken its place.

Exercised by `pytest tests/server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from hasten.api.client import EXIT_GRACE_S, EngineClient
from hasten.api.engine_process import DEFAULT_FACTORY
from hasten.api.eval_gate import EvalRequiredError, require_eval
from hasten.api.http.app import create_app
from hasten.api.http.connections import PunctualProtocol
from hasten.api.http.metrics import Metrics
from hasten.api.http.served_model import ServedModel
from hasten.api.http.service import Phase, Service
from hasten.api.observability.request_log import RequestLog
from hasten.api.observability.tracing import RequestTraces, installed_tracer
from hasten.api.security.keys import Keyring
from hasten.api.text.answer_plan import AnswerStyle
from hasten.api.text_model import TextModel, template_of, tokenizer_of
from hasten.core.host import release_free_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hasten.api.text import TextCodec
    from hasten.api.text.chat_template import ChatTemplate
    from hasten.core.options import EngineOptions, ServerOptions

logger = logging.getLogger("hasten.server")

FORGIVEN_AFTER_S = 60.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 60.0

LINGER_S = 2.0
"""How long `/health` can still be asked why, after the engine has died."""

_OK, _FAILED, _INTERRUPTED = 0, 1, 130


class ServerStartError(RuntimeError):
    """The server cannot start; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server is made of; tests put an engine without a model in."""

    engine_factory: str = DEFAULT_FACTORY
    load_tokenizer: Callable[[EngineOptions], TextCodec] = tokenizer_of
    hide_engine_log: bool = False


def run_server(engine: EngineOptions, server: ServerOptions, parts: Parts | None = None) -> int:
    """Serve until a signal or the engine's death; returns the exit status.

    Raises ServerStartError, EngineStartError or ValueError when it cannot start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Server(engine, server, parts or Parts()).run(catch_signals=True))


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


class Server:
    """One server, from binding its port to having cleaned up after itself."""

    def __init__(self, engine: EngineOptions, server: ServerOptions, parts: Parts) -> None:
        self._engine_options = engine
        self._options = server
        self._parts = parts
        self._service = _service(engine, server)
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._begin_s = time.monotonic()
        self._ready_s = self._begin_s
        self._pause_s = 0.0

    async def run(
        self, *, catch_signals: bool, on_ready: Callable[[str], None] = lambda _: None
    ) -> int:
        """Serve until `stop`; returns the exit status. `on_ready` gets the URL."""
        if catch_signals:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        with bind_socket(self._options.host, self._options.port) as bound:
            scheme = "http" if self._options.tls is None else "https"
            url = _url(scheme, self._options.host, bound.getsockname()[1])
            web = self._web_server()
            serving = asyncio.create_task(web.serve(sockets=[bound]))
            try:
                async with self._grpc_front():
                    return await self._serve_engine(url, on_ready)
            finally:
                web.should_exit = True
                await serving

    @contextlib.asynccontextmanager
    async def _grpc_front(self) -> AsyncIterator[None]:
        """Where a port for gRPC is given: answers there. Raises ServerStartError."""
        options = self._options
        if options.grpc_port is None:
            yield
            return
        from hasten.api.grpc.server import GrpcStartError, grpc_front

        address = options.host, options.grpc_port
        try:
            async with grpc_front(self._service, address, options.tls, self.stop):
                yield
        except GrpcStartError as error:
            raise ServerStartError(str(error)) from error

    def stop(self) -> None:
        """Begin to shut down; called again, at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def _web_server(self) -> _QuietUvicorn:
        """Raises ServerStartError for files of a certificate that cannot be used."""
        config = uvicorn.Config(
            create_app(self._service, self._options.origins),
            http=PunctualProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=self._options.ssl_certfile,
            ssl_keyfile=self._options.ssl_keyfile,
        )
        try:
            config.load()
        except OSError as error:
            reason = error.strerror or str(error)
            files = f"--ssl-certfile {config.ssl_certfile}, --ssl-keyfile {config.ssl_keyfile}"
            raise ServerStartError(f"{files}: {reason}") from error
        return _QuietUvicorn(config)

    async def _serve_engine(self, url: str, on_ready: Callable[[str], None]) -> int:
        """Start the engine and stay until told to stop, or until the engine dies."""
        starting = asyncio.create_task(self._start_model())
        if not await self._done_before_stop(starting):
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return _INTERRUPTED
        status = await self._serve_model(starting.result(), url, on_ready)
        while status == _FAILED and self._options.restart_engine:
            model = await self._restart()
            if model is None:
                break
            status = await self._serve_model(model, url, on_ready)
        return status

    async def _serve_model(
        self, model: ServedModel, url: str, on_ready: Callable[[str], None]
    ) -> int:
        """Serve with this engine until told to stop, or until it dies."""
        self._service.become_ready(model)
        self._service.metrics.name_model(model.name, self._engine_options.cache.block_size)
        # What exists now lives as long as the server: collections, which stop every stream for as
        # long as they take, need not walk over it.
        gc.collect()
        gc.freeze()
        release_free_memory()
        self._ready_s = time.monotonic()
        logger.info("ready after %.1f s", self._ready_s - self._begin_s)
        logger.info("Serving %s on %s", model.name, url)
        on_ready(url)
        dying = asyncio.create_task(model.client.wait_dead())
        try:
            if await self._done_before_stop(dying):
                return await self._report_death(model)
            return await self._drain(model)
        finally:
            dying.cancel()
            model.close()
            await model.client.close(grace_s=0.0 if self._hurry.is_set() else EXIT_GRACE_S)

    async def _done_before_stop(self, task: asyncio.Task[Any]) -> bool:
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return task.done()

    async def _start_model(self) -> ServedModel:
        """The engine's process and this one's text half load at the same time."""
        options = self._engine_options
        text = asyncio.create_task(asyncio.to_thread(self._load_text))
        engine = asyncio.create_task(
            EngineClient.start(
                options,
                self._parts.engine_factory,
                quiet=self._parts.hide_engine_log,
                stall_timeout_s=self._options.stall_timeout_s,
                log_format=self._options.log_format,
            )
        )
        try:
            tokenizer, template = await text
            client = await engine
        except BaseException:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            raise
        await self._require_eval(client, tokenizer)
        text_model = TextModel(tokenizer, template, client.info, options.model.seed)
        source = "" if template is None else template.source
        style = AnswerStyle.resolve(self._options, source)
        return ServedModel(client, text_model, options, self._service.metrics, style)

    async def _require_eval(self, client: EngineClient, tokenizer: TextCodec) -> None:
        """Raises ServerStartError, the engine ended, where a required evaluation is missing."""
        try:
            line = await asyncio.to_thread(
                require_eval, self._engine_options, client.info.identity, tokenizer, self._options
            )
        except BaseException as error:
            await client.close()
            if isinstance(error, EvalRequiredError):
                raise ServerStartError(str(error)) from error
            raise
        if line:
            logger.info(line)

    def _load_text(self) -> tuple[TextCodec, ChatTemplate | None]:
        tokenizer = self._parts.load_tokenizer(self._engine_options)
        return tokenizer, template_of(self._engine_options, tokenizer)

    async def _restart(self) -> ServedModel | None:
        """A new engine in the place of one that died; None when it does not come up, or on stop.

        One that dies soon after its start would do so again: each restart waits longer than the
        one before, and a good while of service forgives.
        """
        self._service.phase = Phase.RESTARTING
        self._pause_s = next_pause(self._pause_s, time.monotonic() - self._ready_s)
        logger.info("starting the engine again in %.1f s", self._pause_s)
        if await self._done_before_stop(asyncio.create_task(asyncio.sleep(self._pause_s))):
            self._begin_s = time.monotonic()
            starting = asyncio.create_task(self._start_model())
            if await self._done_before_stop(starting):
                return self._restarted(starting)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        return None

    def _restarted(self, starting: asyncio.Task[ServedModel]) -> ServedModel | None:
        if error := starting.exception():
            logger.error("the engine does not start again: %s", error)
            return None
        self._service.metrics.restarts.inc()
        return starting.result()

    async def _report_death(self, model: ServedModel) -> int:
        logger.error("the engine has died: %s", model.client.failure)
        if self._options.restart_engine:
            return _FAILED
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), LINGER_S)
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


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def next_pause(last_s: float, served_s: float) -> float:
    """Seconds to wait before a restart, after an engine that served for so long."""
    if served_s > FORGIVEN_AFTER_S:
        return 0.0
    return min(max(MIN_PAUSE_S, 2 * last_s), MAX_PAUSE_S)


def _service(engine: EngineOptions, server: ServerOptions) -> Service:
    """Raises KeyFileError."""
    scheduler, tracer = engine.scheduler, installed_tracer()
    return Service(
        metrics=Metrics(),
        keyring=Keyring.of(server.api_key, server.api_key_file),
        # Twice the queue: what is being read and tokenised has not reached it yet.
        max_active=scheduler.max_num_seqs + 2 * scheduler.max_queue_len,
        request_log=RequestLog(with_prompts=server.log_prompts) if server.log_requests else None,
        traces=None if tracer is None else RequestTraces(tracer),
    )
