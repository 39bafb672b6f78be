"""Where a check runs and how large it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from hasten.kernels.triton.backend import TritonBackend
from hasten.kernels.triton.machine import CudaMachine

Row = dict[str, Any]
"""One finding, as it goes into the report."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`is_tiny`: sizes for the interpreter, to see the check itself work."""

    device: str
    is_tiny: bool

    @property
    def has_gpu(self) -> bool:
        return self.device == "cuda"

    def backend(self, *, enforce_eager: bool = False) -> TritonBackend:
        return TritonBackend(self.device, enforce_eager=enforce_eager)

    def synchronize(self) -> None:
        if self.has_gpu:
            torch.cuda.synchronize()

    @torch.inference_mode()
    def seconds(self, work: Callable[[], object], num_calls: int = 1, repeats: int = 15) -> float:
        """The time of one of the `num_calls` that `work` makes: the median of replays of a graph,
        which the host does not slow down.
        """
        work()
        self.synchronize()
        if not self.has_gpu:
            begin = perf_counter()
            work()
            return (perf_counter() - begin) / num_calls
        graph = CudaMachine().capture(work)
        graph.replay()
        spans = []
        for _ in range(repeats):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
            start.record()
            graph.replay()
            stop.record()
            spans.append((start, stop))
        torch.cuda.synchronize()
        times = sorted(start.elapsed_time(stop) for start, stop in spans)
        return float(times[len(times) // 2]) / 1000 / num_calls
