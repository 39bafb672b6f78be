"""A machine as CUDA is one, on the CPU, that keeps a record.

What was uploaded arrives at the next launch or replay, from the memory that was given. What is
captured is not executed, and a replay launches it again with the very arguments of then. So
whatever a graph would not see on a GPU it does not see here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from hasten.kernels.triton.binding import launch

Launch = tuple[Any, tuple[int, ...], tuple[torch.Tensor | float, ...], dict[str, Any]]


@dataclass(slots=True)
class RecordingMachine:
    """`launch` belongs to it: a backend must be given both."""

    record: list[str] = field(default_factory=list)
    num_finished: int = 0
    num_captured: int = 0
    num_nodes: int = 0
    _arriving: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _captured: list[Launch] | None = None

    def staging(self, data: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(data)

    def upload(self, data: torch.Tensor, staged: torch.Tensor) -> None:
        assert self._captured is None, "a copy from the host would be captured"
        self.record.append("upload")
        self._arriving.append((data, staged))

    def settle(self) -> None:
        self.record.append("settle")
        self._arrive()

    def finish(self) -> None:
        self.num_finished += 1
        self._arrive()

    def capture(self, work: Callable[[], object]) -> _Replay:
        self.record.append("capture")
        self._captured = []
        work()
        replay = _Replay(self, self._captured)
        self.num_captured += 1
        self.num_nodes += len(self._captured)
        self._captured = None
        return replay

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *operands: torch.Tensor | float,
        **options: Any,
    ) -> None:
        if self._captured is not None:
            self._captured.append((kernel, grid, operands, options))
            return
        self.record.append("launch")
        self._arrive()
        launch(kernel, grid, *operands, **options)

    def replay(self, captured: list[Launch]) -> None:
        self.record.append("replay")
        self._arrive()
        for kernel, grid, operands, options in captured:
            launch(kernel, grid, *operands, **options)

    def take_record(self) -> list[str]:
        """What happened since it was last taken, without repetitions."""
        happened = [what for what, _ in groupby(self.record)]
        self.record.clear()
        return happened

    def _arrive(self) -> None:
        for data, staged in self._arriving:
            data.copy_(staged)
        self._arriving.clear()


@dataclass(frozen=True, slots=True)
class _Replay:
    machine: RecordingMachine
    launches: list[Launch]

    def replay(self) -> None:
        self.machine.replay(self.launches)
