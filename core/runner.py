"""The executor of one process: a compiled program over its own KV cache, and steps to time it by.

Not here: what a step contains (`core.batch`), arithmetic (the backends). Exercised by
`pytest tests/cpu/engine`.
"""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Protocol

import numpy as np
from hasten.kernels.backend import StoresTaps
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import GroupTables, SamplingRows, StepBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.core.drafter import FeatureStore
    from hasten.core.latency import Chunk
    from hasten.kernels.backend import Backend, Executable, KVPlan
    from hasten.kernels.program import Capacity, Program, WeightName
    from hasten.kernels.step import I32, StepResult
    from hasten.kernels.weights import Weight


class TapReader(Protocol):
    """Reads what a step tapped, right after it."""

    def take(self, batch: StepBatch, executable: Executable) -> None: ...


class InProcessExecutor:
    """Runs steps where it is called. Raises UnsupportedOpError when the backend lacks an op."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        weights: Mapping[WeightName, Weight],
        kv_plan: KVPlan,
        capacity: Capacity,
    ) -> None:
        self.kv_cache = backend.allocate_kv(kv_plan)
        self._executable = backend.compile(program, weights, self.kv_cache, capacity)
        self._capacity = capacity
        self._clock = measuring_clock(backend)
        self._feature_stores: list[TapReader] = []

    def keep_features(self, store: TapReader) -> None:
        """Hand what each step taps to `store`."""
        self._feature_stores.append(store)

    def keep_features_by_slot(self, store: FeatureStore) -> None:
        """Keep them in `store`; a backend that can does so by itself, with each step."""
        if isinstance(self._executable, StoresTaps):
            self._executable.store_taps(store.taps, store.group_id, store.rows)
        else:
            self.keep_features(store)

    def execute(self, batch: StepBatch) -> StepResult:
        result = self._executable.run(batch)
        for store in self._feature_stores:
            store.take(batch, self._executable)
        return result

    def measure(self, chunks: Sequence[Chunk]) -> float:
        """Seconds of one step of these chunks. It writes to the null block alone."""
        batch = dummy_batch(chunks, self.kv_cache.plan, self._capacity.max_model_len)
        begin = self._clock()
        self._executable.run(batch)
        return self._clock() - begin


def measuring_clock(backend: Backend) -> Callable[[], float]:
    """By what the work of a step is measured, apart from what the machine does for others.

    On a CPU the thread that asks computes its share of each step, beside others that do the same,
    so its own time is the step's.
    """
    return thread_time if backend.name in ("cpu", "reference") else perf_counter


def dummy_batch(chunks: Sequence[Chunk], kv_plan: KVPlan, max_model_len: int) -> StepBatch:
    """A step like a real one, except that every block of every request is the null block."""
    positions = np.concatenate(
        [np.arange(c.start, c.start + c.num_tokens, dtype=np.int32) for c in chunks]
    )
    query_starts = np.cumsum([0, *(c.num_tokens for c in chunks)], dtype=np.int32)
    logit_rows = np.concatenate(
        [
            np.arange(end - c.num_logit_rows, end, dtype=np.int32)
            for c, end in zip(chunks, query_starts[1:].tolist(), strict=True)
        ]
    )
    max_blocks = -(-max_model_len // kv_plan.block_size)
    group = GroupTables(
        slot_mapping=positions % kv_plan.block_size,
        block_tables=np.zeros((1, max_blocks), np.int32),
        block_copies=np.zeros((0, 2), np.int32),
    )
    return StepBatch(
        token_ids=np.zeros(len(positions), np.int32),
        positions=positions,
        query_starts=query_starts,
        seq_lens=np.array([c.start + c.num_tokens for c in chunks], np.int32),
        table_rows=np.zeros(len(chunks), np.int32),
        groups=(group,) * len(kv_plan.groups),
        logit_rows=logit_rows,
        sampling=_default_sampling(positions[logit_rows] + 1),
    )


def _default_sampling(positions: I32) -> SamplingRows:
    """Sampling at temperature 1, what clients get that ask for nothing."""
    rows = greedy_rows(len(positions), positions=positions)
    rows.temperature.fill(1)
    return rows
