"""The parent's end of an engine process: start it, send requests, hand each its tokens.

    async with await EngineClient.start(EngineOptions()) as client:
        async for output in client.generate(AddRequest(...)):
            ...

One event loop owns a client. Exercised by `pytest tests/unit/api/test_client.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

import msgspec
import zmq
import zmq.asyncio
from hasten.api.engine_process import (
    DEFAULT_FACTORY,
    INPUT_SOCKET,
    OUTPUT_SOCKET,
    EngineLaunch,
    socket_address,
)
from hasten.core.messages import (
    AbortRequests,
    AddRequest,
    EngineFailed,
    EngineInput,
    EngineOutput,
    EngineReady,
    EngineState,
    GetState,
    GetStats,
    OutputBatch,
    RequestRefused,
    Shutdown,
    Stats,
    TokenOutput,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hasten.core.options import EngineOptions

_T = TypeVar("_T")

STALL_TIMEOUT_S = 60.0
"""An engine that owes an answer and has said nothing for this long counts as dead.

It says something after each step, so this is longer than any step may take.
"""

MAX_BUFFERED_OUTPUTS = 16384
"""A request whose consumer falls so many steps behind is ended: memory is bounded."""

EXIT_GRACE_S = 5.0
"""How long the engine process may take to end after it was told to."""


class EngineError(RuntimeError):
    """The engine cannot go on with a request."""


class EngineStartError(EngineError):
    """The engine process did not come up; the message says why."""


class EngineDeadError(EngineError):
    """The engine process has ended."""


class RequestAbortedError(EngineError):
    """The request was ended by the server, not by its client."""


class DeadlineExceededError(EngineError):
    """The request's deadline has passed, or cannot be met any more."""


class WaitedTooLongError(EngineError):
    """The request was let into the queue, but its turn has not come in time."""


class RequestFailedError(EngineError):
    """The engine cannot compute this request, and serves others."""


class GrammarTooComplexError(EngineError):
    """What the output has to follow takes more work than a request may cause."""


class RequestRefusedError(ValueError):
    """The engine will not run this request; `field` is the parameter to change.

    With `retry_after_s` the request is not at fault, but the load.
    """

    def __init__(self, refusal: RequestRefused) -> None:
        super().__init__(refusal.message)
        self.field = refusal.field
        self.retry_after_s = refusal.retry_after_s


class EngineClient:
    """Use `start`; the object is valid from then until `close`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        socket_dir: str,
        context: zmq.asyncio.Context,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self._process = process
        self._socket_dir = socket_dir
        self._context = context
        self._inputs = self._connect(zmq.PUSH, INPUT_SOCKET)
        self._outputs = self._connect(zmq.PULL, OUTPUT_SOCKET)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[EngineOutput] = msgspec.msgpack.Decoder(EngineOutput)
        self._streams: dict[str, asyncio.Queue[TokenOutput | Exception]] = {}
        self._stats_waiters: list[asyncio.Future[Stats]] = []
        self._state_waiters: list[asyncio.Future[EngineState]] = []
        self._ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self._failure: EngineError | None = None
        self._last_heard_s = time.monotonic()
        self._dead = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._watch_process()),
            asyncio.create_task(self._watch_silence(stall_timeout_s)),
        ]

    @classmethod
    async def start(
        cls,
        options: EngineOptions,
        factory: str = DEFAULT_FACTORY,
        *,
        quiet: bool = False,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        log_format: str = "text",
    ) -> EngineClient:
        """Start an engine process and wait until it takes requests; `quiet` hides its log.

        Raises EngineStartError with the reason when it does not come up.
        """
        socket_dir = _make_socket_dir()
        try:
            # The process's own standard error: what replaces it in notebooks is no file.
            process = await _spawn(asyncio.subprocess.DEVNULL if quiet else sys.__stderr__)
        except BaseException:
            shutil.rmtree(socket_dir, ignore_errors=True)
            raise
        launch = EngineLaunch(
            socket_dir=socket_dir, options=options, factory=factory, log_format=log_format
        )
        client = cls(process, socket_dir, zmq.asyncio.Context(), stall_timeout_s)
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(launch) + b"\n")
            await client._ready
        except BaseException:
            await client.close(grace_s=0.0)
            raise
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def info(self) -> EngineReady:
        """What the engine said when it came up."""
        return self._ready.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_open_requests(self) -> int:
        return len(self._streams)

    @property
    def failure(self) -> str | None:
        """Why the engine cannot take requests any more, or None while it can."""
        return None if self._failure is None else str(self._failure)

    async def wait_dead(self) -> None:
        """Return when the engine process has ended."""
        await self._dead.wait()

    async def generate(self, request: AddRequest) -> AsyncGenerator[TokenOutput]:
        """The outputs of all samples of a request, as steps produce them, until all finished.

        Leaving early aborts what is left: wrap it in `contextlib.aclosing`. Raises
        RequestRefusedError, or EngineError when the engine dies or the server ends the request.
        """
        if self._failure is not None:
            raise self._failure
        queue: asyncio.Queue[TokenOutput | Exception] = asyncio.Queue()
        self._expect_word()
        self._streams[request.request_id] = queue
        num_unfinished = request.params.n
        try:
            self._send(request)
            while num_unfinished:
                output = await queue.get()
                if isinstance(output, Exception):
                    num_unfinished = 0
                    raise output
                num_unfinished -= output.finish_reason is not None
                yield output
        finally:
            self._streams.pop(request.request_id, None)
            if num_unfinished:
                self._send(AbortRequests([request.request_id]))

    def end_sample(self, request_id: str, sample_idx: int) -> None:
        """Stop one sample; outputs of it that are on the way may still come."""
        self._send(AbortRequests([request_id], sample_idx))

    def abort(self, request_id: str, reason: str) -> bool:
        """End an open request with RequestAbortedError(reason); False when it is not open."""
        queue = self._streams.get(request_id)
        if queue is None:
            return False
        queue.put_nowait(RequestAbortedError(reason))
        self._send(AbortRequests([request_id]))
        return True

    def abort_all(self, reason: str) -> None:
        """End every open request with RequestAbortedError(reason)."""
        request_ids = list(self._streams)
        self._fail_streams(RequestAbortedError(reason))
        if request_ids:
            self._send(AbortRequests(request_ids))

    async def stats(self) -> Stats:
        """A snapshot of the engine. Raises EngineError when it is dead."""
        return await self._ask(GetStats(), self._stats_waiters)

    async def state(self) -> EngineState:
        """What the engine works on. Raises EngineError when it is dead."""
        return await self._ask(GetState(), self._state_waiters)

    async def _ask(self, question: GetStats | GetState, waiters: list[asyncio.Future[_T]]) -> _T:
        if self._failure is not None:
            raise self._failure
        self._expect_word()
        waiter: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        self._send(question)
        return await waiter

    async def close(self, grace_s: float = EXIT_GRACE_S) -> None:
        """End the engine process, kindly first, and remove everything that was made for it."""
        self._fail(EngineDeadError("the engine was closed"))
        if self._process.returncode is None:
            self._inputs.send(self._encoder.encode(Shutdown()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _connect(self, kind: int, name: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.connect(socket_address(self._socket_dir, name))
        return socket

    def _send(self, message: EngineInput) -> None:
        """Queue a message; without a high-water mark this never waits."""
        if self._failure is None:
            self._inputs.send(self._encoder.encode(message))

    async def _receive(self) -> None:
        try:
            while True:
                frame = await self._outputs.recv()
                self._last_heard_s = time.monotonic()
                self._dispatch(self._decoder.decode(frame))
        except Exception as error:
            # Nothing that it says can be heard any more: whoever waits has to know.
            self._fail(EngineDeadError(f"the engine is not understood: {error}"))
            raise

    def _dispatch(self, message: EngineOutput) -> None:
        match message:
            case OutputBatch(outputs):
                for output in outputs:
                    self._deliver(output.request_id, output)
            case RequestRefused():
                self._deliver(message.request_id, RequestRefusedError(message))
            case Stats():
                _answer(self._stats_waiters, message)
            case EngineState():
                _answer(self._state_waiters, message)
            case EngineReady():
                self._ready.set_result(message)
            case EngineFailed():
                self._fail(EngineDeadError(message.message))

    def _deliver(self, request_id: str, output: TokenOutput | Exception) -> None:
        # A request that was aborted may still have outputs on the way: nobody waits for them.
        queue = self._streams.get(request_id)
        if queue is None:
            return
        if queue.qsize() >= MAX_BUFFERED_OUTPUTS and not isinstance(output, Exception):
            del self._streams[request_id]
            self._send(AbortRequests([request_id]))
            output = RequestAbortedError("the client reads too slowly")
        queue.put_nowait(output)

    async def _watch_process(self) -> None:
        status = await self._process.wait()
        # Its last words may still be on the way.
        await asyncio.sleep(0.05)
        cause = f"signal {-status}" if status < 0 else f"status {status}"
        self._fail(EngineDeadError(f"the engine process ended unexpectedly ({cause})"))
        self._dead.set()

    @property
    def _is_owed(self) -> bool:
        return bool(self._streams or self._stats_waiters or self._state_waiters)

    def _expect_word(self) -> None:
        """Silence counts from the moment that the engine has a reason to speak."""
        if not self._is_owed:
            self._last_heard_s = time.monotonic()

    async def _watch_silence(self, limit_s: float) -> None:
        """A process that hangs is no better than one that has ended: end it."""
        while True:
            await asyncio.sleep(min(1.0, limit_s / 4))
            silence_s = time.monotonic() - self._last_heard_s
            if self._is_owed and silence_s > limit_s and self._process.returncode is None:
                self._fail(EngineDeadError(f"the engine said nothing for {silence_s:.0f} s"))
                self._process.kill()
                return

    def _fail(self, error: EngineError) -> None:
        """No request can be served from now on; the first reason given counts."""
        if self._failure is not None:
            return
        self._failure = error
        self._fail_streams(error)
        waiters: list[asyncio.Future[Any]] = [*self._stats_waiters, *self._state_waiters]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._stats_waiters.clear()
        self._state_waiters.clear()
        if not self._ready.done():
            self._ready.set_exception(EngineStartError(str(error)))

    def _fail_streams(self, error: EngineError) -> None:
        for queue in self._streams.values():
            queue.put_nowait(error)


def _answer(waiters: list[asyncio.Future[_T]], answer: _T) -> None:
    """Questions are answered in their order."""
    waiter = waiters.pop(0)
    if not waiter.done():
        waiter.set_result(answer)


def _make_socket_dir() -> str:
    """A folder of our own. Raises OSError, or EngineStartError when its name is too long."""
    folder = tempfile.mkdtemp(prefix="hasten-")
    longest = len(socket_address(folder, OUTPUT_SOCKET)) - len("ipc://")
    if longest > zmq.IPC_PATH_MAX_LEN:
        Path(folder).rmdir()
        raise EngineStartError(
            f"the name of the temporary folder {folder} is too long for sockets: set TMPDIR to a "
            "shorter one"
        )
    return folder


async def _spawn(log: int | TextIO | None) -> asyncio.subprocess.Process:
    """An engine process that waits for its `EngineLaunch`."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # A folder of the user's named like one of our modules must not be imported.
        "-P",
        "-m",
        "hasten.api.engine_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=log,
        stderr=log,
    )
