"""Graphs against launches: the same tokens and log-probabilities, and what graphs cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType
from hasten.kernels.triton.backend import TritonBackend
from hasten.kernels.triton.binding import launch
from hasten.kernels.triton.graphs import NODE_BYTES
from hasten.kernels.triton.machine import CudaMachine

from tests.gpu.models import TINY, decoder_config, seeded_model
from tests.gpu.setting import Row, Setting
from tests.helpers.engines import ask, run_requests
from tests.helpers.recording_machine import RecordingMachine
from tests.helpers.workbench import Workbench

if TYPE_CHECKING:
    from hasten.core.messages import AddRequest
    from hasten.kernels.triton.machine import Graph

NARROW = decoder_config(512, 1024, 16, (8, 2, 64), vocab_size=4096)
"""As many launches as a small model, whose arithmetic takes no time."""


class CountingMachine(CudaMachine):
    """Counts the graphs and the launches in them; `launch` belongs to it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_captured = 0
        self.num_nodes = 0
        self._is_capturing = False

    def capture(self, work: Callable[[], object]) -> Graph:
        self.num_captured += 1
        self._is_capturing = True
        try:
            return super().capture(work)
        finally:
            self._is_capturing = False

    def launch(self, *arguments: Any, **options: Any) -> None:
        self.num_nodes += self._is_capturing
        launch(*arguments, **options)


def check_graphs(setting: Setting) -> Iterator[Row]:
    """Equal answers; seconds with and without; device memory of a graph against what is planned.

    The device's free memory is everybody's: nothing else may run on it.
    """
    model = seeded_model(TINY if setting.is_tiny else NARROW, "bf16", DType.BF16)
    machine = CountingMachine() if setting.has_gpu else RecordingMachine()
    backends = {
        "eager": setting.backend(enforce_eager=True),
        "graphs": TritonBackend(setting.device, launcher=machine.launch, machine=machine),
    }
    texts, seconds, taken_bytes = [], {}, 0
    for name, backend in backends.items():
        bench = Workbench.over(
            backend, model.program, model.weights, num_blocks=200, max_model_len=256
        )
        free_bytes = _free_bytes(setting)
        for _ in range(2):
            begin = perf_counter()
            answers = run_requests(bench.engine(), _requests(setting))
            seconds[name] = perf_counter() - begin
            texts.append({key: answer.text for key, answer in answers.items()})
        taken_bytes = free_bytes - _free_bytes(setting)
    yield {"what": "answers", "ok": all(text == texts[0] for text in texts)}
    yield {"what": "seconds of a run", **{name: round(took, 4) for name, took in seconds.items()}}
    yield {
        "what": "memory",
        "graphs": machine.num_captured,
        "launches": machine.num_nodes,
        "bytes per launch": round(taken_bytes / max(machine.num_nodes, 1)),
        "planned": NODE_BYTES,
        "ok": machine.num_captured > 0 and 0 <= taken_bytes <= machine.num_nodes * NODE_BYTES,
    }


def _requests(setting: Setting) -> list[AddRequest]:
    count, max_tokens = (1, 5) if setting.is_tiny else (24, 40)
    return [
        ask(
            f"r{i}",
            [1 + i] * (1 + 3 * i),
            GenerationParams(max_tokens=max_tokens - i % 3, seed=i, logprobs=1, ignore_eos=True),
        )
        for i in range(count)
    ]


def _free_bytes(setting: Setting) -> int:
    if not setting.has_gpu:
        return 0
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])
