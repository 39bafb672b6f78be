"""The engine process: an engine between two ZeroMQ sockets.

`python -m hasten.api.engine_process` reads an `EngineLaunch` from its standard input (one line of
JSON), binds both sockets, builds the engine and loops until told to stop. Standard input then
stays open as a life line: when it ends, the parent is gone and this process ends too.

    parent --(PUSH/PULL: EngineInput)--> engine --(PUSH/PULL: EngineOutput)--> parent

It is started by `hasten.api.client`, never by hand. Exercised by
`pytest tests/unit/api/test_client.py`.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
import zmq
from hasten.api.observability.log_lines import set_up_logging
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
from hasten.core.options import EngineOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_FACTORY = "hasten.api.engine:build_engine"
INPUT_SOCKET = "input"
OUTPUT_SOCKET = "output"


class EngineLike(Protocol):
    """What the loop asks of an engine."""

    @property
    def has_work(self) -> bool: ...

    def add_request(self, request: AddRequest) -> RequestRefused | None: ...

    def abort(self, request_ids: Sequence[str], sample_idx: int | None = None) -> None: ...

    def abort_all(self) -> list[TokenOutput]: ...

    def step(self) -> list[TokenOutput]: ...

    def stats(self) -> Stats: ...

    def state(self) -> EngineState: ...

    def ready_message(self) -> EngineReady: ...


class EngineLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is started with.

    `socket_dir` is private to this pair of processes; whoever of the two ends last removes it.
    `factory` is "module:function", called with the options.
    """

    socket_dir: str
    options: EngineOptions
    factory: str = DEFAULT_FACTORY
    log_format: str = "text"


def socket_address(socket_dir: str, name: str) -> str:
    return f"ipc://{socket_dir}/{name}"


class EngineLoop:
    """Feeds an engine from `inputs` and sends what each step says to `outputs`."""

    def __init__(
        self, engine: EngineLike, inputs: zmq.Socket[bytes], outputs: zmq.Socket[bytes]
    ) -> None:
        self._engine = engine
        self._inputs = inputs
        self._outputs = outputs
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[EngineInput] = msgspec.msgpack.Decoder(EngineInput)
        self._stopping = False

    def run(self) -> None:
        """Step while there is work, sleep while there is none; returns after `Shutdown`."""
        self._send(self._engine.ready_message())
        while True:
            self._take_inputs()
            if self._stopping:
                return
            # An empty batch is sent too: it tells the parent that a long prompt makes progress.
            self._send(OutputBatch(self._engine.step()))

    def _take_inputs(self) -> None:
        """Handle all that has arrived; wait for more while there is nothing to compute."""
        while not self._stopping:
            try:
                flags = zmq.NOBLOCK if self._engine.has_work else 0
                frame = self._inputs.recv(flags)
            except zmq.Again:
                return
            self._handle(self._decoder.decode(frame))

    def _handle(self, message: EngineInput) -> None:
        match message:
            case AddRequest():
                refusal = self._engine.add_request(message)
                if refusal is not None:
                    self._send(refusal)
            case AbortRequests(request_ids, sample_idx):
                self._engine.abort(request_ids, sample_idx)
            case GetStats():
                self._send(self._engine.stats())
            case GetState():
                self._send(self._engine.state())
            case Shutdown():
                self._send(OutputBatch(self._engine.abort_all()))
                self._stopping = True

    def _send(self, message: EngineOutput) -> None:
        self._outputs.send(self._encoder.encode(message))


def load_factory(reference: str) -> Callable[[EngineOptions], EngineLike]:
    """The function that "module:function" names. Raises ImportError or AttributeError."""
    module, _, name = reference.partition(":")
    factory = getattr(importlib.import_module(module), name)
    return cast("Callable[[EngineOptions], EngineLike]", factory)


def _describe(error: Exception) -> str:
    """One line for the parent; what is no mistake of the user's leaves its traceback here."""
    if isinstance(error, MemoryError):
        return (
            "there is not enough memory for the model and its KV cache: lower "
            "--kv-cache-memory-bytes or --max-num-batched-tokens"
        )
    if isinstance(error, ValueError | OSError):
        return str(error) or type(error).__name__
    traceback.print_exc()
    return f"{type(error).__name__}: {error}"


def run_engine(launch: EngineLaunch, context: zmq.Context[zmq.Socket[bytes]]) -> int:
    """Build the engine and serve it; returns the exit status."""
    with context.socket(zmq.PULL) as inputs, context.socket(zmq.PUSH) as outputs:
        inputs.set_hwm(0)
        outputs.set_hwm(0)
        # The parent may be gone: do not wait long for it to read what is left.
        outputs.linger = 1000
        inputs.bind(socket_address(launch.socket_dir, INPUT_SOCKET))
        outputs.bind(socket_address(launch.socket_dir, OUTPUT_SOCKET))
        try:
            engine = load_factory(launch.factory)(launch.options)
        except Exception as error:  # noqa: BLE001  whatever it is, the parent has to hear of it
            outputs.send(msgspec.msgpack.encode(EngineFailed(_describe(error))))
            return 1
        try:
            EngineLoop(engine, inputs, outputs).run()
        except Exception as error:  # noqa: BLE001  whatever it is, the parent has to hear of it
            traceback.print_exc()
            outputs.send(msgspec.msgpack.encode(EngineFailed(f"{type(error).__name__}: {error}")))
            return 1
    return 0


def _end_with_parent(socket_dir: str) -> None:
    """Block until the life line ends, then end this process whatever it is doing."""
    sys.stdin.buffer.read()
    shutil.rmtree(socket_dir, ignore_errors=True)
    os._exit(1)


def main() -> int:
    # Ctrl-C reaches the whole terminal group: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineLaunch)
    set_up_logging(launch.log_format)
    watcher = threading.Thread(target=_end_with_parent, args=(launch.socket_dir,), daemon=True)
    watcher.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        return run_engine(launch, context)
    finally:
        context.term()


if __name__ == "__main__":
    # Not sys.exit: a daemon thread blocked on standard input would make the interpreter abort.
    status = main()
    sys.stderr.flush()
    os._exit(status)
