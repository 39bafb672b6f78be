"""What an executable asks of the machine that it runs on: memory to copy from, copies, and graphs.

    settle    the copies of the step before are done: what they read may be overwritten
    upload    begin to copy what was staged; launches that follow see it
    finish    everything begun is done, as when a step's tokens were read back
    capture   what a sequence of launches would do, to be replayed

Everything happens in the order of one CUDA stream. On the CPU, under the interpreter, there is
nothing to copy or to capture. Not here: when a step uploads and captures (`executable`, `graphs`).
Exercised by `pytest tests/cpu/triton/test_graphs.py`, with a machine that keeps a record, and on a
GPU by `make gpu-check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Graph(Protocol):
    """Launches that were captured."""

    def replay(self) -> None: ...


class Machine(Protocol):
    """One device, as an executable uses it."""

    def staging(self, data: torch.Tensor) -> torch.Tensor:
        """Host memory from which `data` will be uploaded."""
        ...

    def upload(self, data: torch.Tensor, staged: torch.Tensor) -> None:
        """Begin to copy; `staged` may not change before `settle`."""
        ...

    def settle(self) -> None:
        """Return once all uploads are done."""
        ...

    def finish(self) -> None:
        """Return once everything begun is done."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """What `work` launches, without executing it."""
        ...


class HostMachine:
    """The CPU: kernels read what was staged where it lies."""

    def staging(self, data: torch.Tensor) -> torch.Tensor:
        return data

    def upload(self, data: torch.Tensor, staged: torch.Tensor) -> None:
        """Nothing to copy: they are the same memory."""

    def settle(self) -> None:
        """Nothing was begun."""

    def finish(self) -> None:
        """Launches return when they are done."""

    def capture(self, work: Callable[[], object]) -> Graph:
        raise NotImplementedError("graphs need a CUDA device")


class CudaMachine:
    """The current CUDA device and its current stream."""

    def __init__(self) -> None:
        self._uploaded: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's

    def staging(self, data: torch.Tensor) -> torch.Tensor:
        return torch.zeros(data.shape, dtype=data.dtype, pin_memory=True)

    def upload(self, data: torch.Tensor, staged: torch.Tensor) -> None:
        data.copy_(staged, non_blocking=True)
        self._uploaded.record()

    def settle(self) -> None:
        self._uploaded.synchronize()

    def finish(self) -> None:
        torch.cuda.current_stream().synchronize()

    def capture(self, work: Callable[[], object]) -> Graph:
        """Captured on a stream of its own, as CUDA demands, which waits for the current one.

        Not `torch.cuda.graph`: it collects garbage and empties torch's cache first, which takes a
        running server longer than capturing does.
        """
        graph = torch.cuda.CUDAGraph()
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph
