"""Rows alone and together, at the shapes of a large model: the same bits, in every scheme.

One layer and the head, over requests that cross tiles, blocks and splits of attention. This is
where matrix instructions of different widths meet (`kernels.triton.products`), which no interpreter
has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from hasten.core.models.decoder import feature_tap
from hasten.kernels.backend import KVPlan
from hasten.kernels.conformance.cutting import (
    BLOCK_SIZE,
    BatchMaker,
    Part,
    Schedule,
    schedules,
)
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.sampling_rows import greedy_rows

from tests.gpu.models import LLAMA_8B, TINY, SeededModel, seeded_model
from tests.gpu.setting import Row, Setting

if TYPE_CHECKING:
    from hasten.kernels.step import SamplingRows, StepBatch
    from hasten.kernels.triton.executable import TritonExecutable

F32 = npt.NDArray[np.float32]
LENGTHS = (300, 33, 1, 1100, 130)
TINY_LENGTHS = (20, 3)
NUM_LOGPROBS = 5
MAX_LOGIT_ROWS = 64


def check_bits(setting: Setting, scheme: str) -> Iterator[Row]:
    """One row for each way to cut the requests, and one for the logits."""
    kv_dtype = DType.FP8_E4M3 if scheme.startswith("fp8") else DType.BF16
    one_layer = replace(LLAMA_8B, num_layers=1, windows=(None,))
    config = TINY if setting.is_tiny else one_layer
    model = seeded_model(config, scheme, kv_dtype, taps_output=True)
    runner = _Runner.make(setting, model, TINY_LENGTHS if setting.is_tiny else LENGTHS)
    ways = schedules(runner.lengths)
    if setting.is_tiny:
        ways = {name: ways[name] for name in ("together", "chunks of 7")}
    together = runner.run(ways.pop("together"))
    for name, way in ways.items():
        found = runner.run(way)
        num_wrong = int((found.hidden != together.hidden).any(axis=1).sum())
        same_logits = np.array_equal(found.logprobs, together.logprobs)
        yield {
            "scheme": scheme,
            "cut": name,
            "ok": num_wrong == 0 and same_logits and bool(np.isfinite(found.hidden).all()),
            "rows": len(found.hidden),
            "rows that differ": num_wrong,
            "logits equal": same_logits,
        }


@dataclass(frozen=True, slots=True)
class _Outcome:
    hidden: F32  # [rows, hidden]
    logprobs: F32  # [requests, NUM_LOGPROBS] after each request's last row


@dataclass(frozen=True, slots=True)
class _Runner:
    lengths: tuple[int, ...]
    maker: BatchMaker
    executable: TritonExecutable
    width: int
    tap: str

    @classmethod
    def make(cls, setting: Setting, model: SeededModel, lengths: tuple[int, ...]) -> _Runner:
        backend = setting.backend(enforce_eager=True)
        groups = model.program.kv_groups
        maker = BatchMaker(lengths, groups)
        cache = backend.allocate_kv(KVPlan(groups, (maker.num_blocks,) * len(groups), BLOCK_SIZE))
        capacity = Capacity(sum(lengths), len(lengths), MAX_LOGIT_ROWS, maker.max_len)
        executable = backend.compile(model.program, model.weights, cache, capacity)
        tap = feature_tap(model.config.num_layers)
        return cls(lengths, maker, executable, model.config.hidden_size, tap)

    def run(self, schedule: Schedule) -> _Outcome:
        hidden = np.full((sum(self.lengths), self.width), np.nan, np.float32)
        logprobs = np.full((len(self.lengths), NUM_LOGPROBS), np.nan, np.float32)
        for parts in schedule:
            ended = [part for part in parts if part.stop == self.lengths[part.request]]
            result = self.executable.run(_with_logits(self.maker.batch(parts), parts, ended))
            hidden[self.maker.rows(parts)] = self.executable.tap(self.tap)
            if ended:
                logprobs[[part.request for part in ended]] = result.top_logprobs
        return _Outcome(hidden, logprobs)


def _with_logits(batch: StepBatch, parts: list[Part], ended: list[Part]) -> StepBatch:
    """The step with logits for the last rows of the requests that end in it."""
    ends = dict(zip((part.request for part in parts), batch.query_starts[1:], strict=True))
    rows = np.array([ends[part.request] - 1 for part in ended], np.int32)
    return replace(batch, logit_rows=rows, sampling=_records(len(rows)))


def _records(num_rows: int) -> SamplingRows:
    return replace(greedy_rows(num_rows), num_logprobs=np.full(num_rows, NUM_LOGPROBS, np.int32))
