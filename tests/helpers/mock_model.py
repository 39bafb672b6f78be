"""A model in numpy whose next token depends on every token before it, and on nothing else.

`MockExecutor` keeps in each KV slot which token, at which position, was written there. For a row
of logits it reads the whole history back through the block tables: a wrong slot, table, copy or
length changes the text or fails an assertion. Sampling follows `kernels.ops.Sample` step by step.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.backend import KVPlan
from hasten.kernels.philox import philox4x32
from hasten.kernels.step import SamplingRows, SparseRows, StepBatch, StepResult

F64 = npt.NDArray[np.float64]
SHARPNESS = 2.0
"""Standard deviation of the mock's logits."""


class MockExecutor:
    """Executes steps over a cache of (token, position); counts what it computed."""

    def __init__(self, plan: KVPlan, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.num_tokens_computed = 0
        self.batches: list[StepBatch] = []
        self._plan = plan
        self._slots = [
            np.full((count * plan.block_size, 2), -1, np.int64) for count in plan.num_blocks
        ]

    def execute(self, batch: StepBatch) -> StepResult:
        check_batch(batch, self._plan)
        self.num_tokens_computed += batch.num_tokens
        self.batches.append(batch)
        self._write(batch)
        row_requests = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        logits = [
            logits_after(self._history(batch, int(request), int(batch.positions[row])), self)
            for row, request in zip(batch.logit_rows, row_requests, strict=True)
        ]
        return sample(logits, batch.sampling)

    def _write(self, batch: StepBatch) -> None:
        size = self._plan.block_size
        for slots, group in zip(self._slots, batch.groups, strict=True):
            blocks = slots.reshape(-1, size, 2)
            sources, destinations = group.block_copies.T
            blocks[destinations] = blocks[sources]
            assert (group.slot_mapping >= size).all(), "a real token goes to the null block"
            assert len(set(group.slot_mapping.tolist())) == batch.num_tokens, "a slot written twice"
            slots[group.slot_mapping] = np.stack((batch.token_ids, batch.positions), 1)

    def _history(self, batch: StepBatch, request: int, last: int) -> tuple[int, ...]:
        """Tokens 0..last, from the first group without a window; windows are checked as well."""
        history: tuple[int, ...] = ()
        table_row = batch.table_rows[request]
        for spec, slots, group in zip(self._plan.groups, self._slots, batch.groups, strict=True):
            first = 0 if spec.window is None else max(0, last - spec.window + 1)
            positions = np.arange(first, last + 1)
            blocks = group.block_tables[table_row, positions // self._plan.block_size]
            found = slots[blocks * self._plan.block_size + positions % self._plan.block_size]
            assert (found[:, 1] == positions).all(), "the cache holds other positions"
            if spec.window is None:
                history = tuple(found[:, 0].tolist())
        return history


def check_batch(batch: StepBatch, plan: KVPlan) -> None:
    """Everything that `kernels.step` promises of a batch's shapes and types."""
    num_tokens, num_requests, num_rows = (
        len(batch.token_ids),
        len(batch.seq_lens),
        len(batch.logit_rows),
    )
    for array in (batch.token_ids, batch.positions, batch.query_starts, batch.seq_lens):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    assert batch.positions.shape == (num_tokens,)
    assert batch.query_starts.shape == (num_requests + 1,)
    assert batch.table_rows.shape == (num_requests,)
    assert batch.query_starts[0] == 0
    assert batch.query_starts[-1] == num_tokens
    lens = np.diff(batch.query_starts)
    assert (lens > 0).all()
    starts = batch.seq_lens - lens
    for r in range(num_requests):
        span = batch.positions[batch.query_starts[r] : batch.query_starts[r + 1]]
        assert span.tolist() == list(range(starts[r], batch.seq_lens[r]))
    assert len(batch.groups) == len(plan.groups)
    for group in batch.groups:
        assert group.slot_mapping.shape == (num_tokens,)
        assert group.slot_mapping.dtype == group.block_tables.dtype == np.int32
    check_sampling(batch.sampling, num_rows)


def check_sampling(sampling: SamplingRows, num_rows: int) -> None:
    floats = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty")
    ints = ("top_k", "positions", "sample_idx", "num_logprobs", "target_ids")
    dtypes: dict[str, Any] = dict.fromkeys(floats, np.float32) | dict.fromkeys(ints, np.int32)
    for name, dtype in (dtypes | {"seeds": np.uint64}).items():
        array = getattr(sampling, name)
        assert array.shape == (num_rows,), name
        assert array.dtype == dtype, name
        assert array.flags.c_contiguous, name
    for rows in (sampling.counts, sampling.bias):
        if rows is not None:
            assert rows.starts.shape == (num_rows + 1,)
            assert rows.starts[-1] == len(rows.token_ids) == len(rows.values)


def logits_after(history: tuple[int, ...], model: MockExecutor) -> F64:
    """The mock's raw logits [vocab] behind `history`."""
    return _logits(history, model.vocab_size)


@lru_cache(maxsize=100_000)
def _logits(history: tuple[int, ...], vocab_size: int) -> F64:
    digest = hashlib.blake2b(np.array(history, np.int32).tobytes(), digest_size=8).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    logits = generator.normal(0.0, SHARPNESS, vocab_size)
    logits.flags.writeable = False
    return logits


def sample(logits: list[F64], rows: SamplingRows) -> StepResult:
    """`kernels.ops.Sample`, row by row."""
    num_rows = len(logits)
    width = max([0, *rows.num_logprobs.tolist()])
    result = StepResult(
        token_ids=np.zeros(num_rows, np.int32),
        logprobs=np.full(num_rows, np.nan, np.float32),
        top_ids=np.full((num_rows, width), -1, np.int32),
        top_logprobs=np.full((num_rows, width), np.nan, np.float32),
    )
    for row, raw in enumerate(logits):
        target = int(rows.target_ids[row])
        chosen = target if target >= 0 else _choose(_processed(raw, rows, row), rows, row)
        result.token_ids[row] = chosen
        num_top = int(rows.num_logprobs[row])
        if num_top >= 0:
            logprobs = raw - np.logaddexp.reduce(raw)
            top = np.argsort(-raw, kind="stable")[:num_top]
            result.logprobs[row] = logprobs[chosen]
            result.top_ids[row, :num_top] = top
            result.top_logprobs[row, :num_top] = logprobs[top]
    return result


def _entries(sparse: SparseRows | None, row: int) -> dict[int, float]:
    if sparse is None:
        return {}
    span = slice(sparse.starts[row], sparse.starts[row + 1])
    ids = sparse.token_ids[span].tolist()
    assert len(set(ids)) == len(ids), "a token appears twice in a row"
    return dict(zip(ids, sparse.values[span].tolist(), strict=True))


def _processed(raw: F64, rows: SamplingRows, row: int) -> F64:
    logits = raw.copy()
    repetition = float(rows.repetition_penalty[row])
    for token_id, count in _entries(rows.counts, row).items():
        seen = logits[token_id]
        logits[token_id] = seen / repetition if seen > 0 else seen * repetition
        logits[token_id] -= count * float(rows.frequency_penalty[row])
        logits[token_id] -= (count > 0) * float(rows.presence_penalty[row])
    for token_id, value in _entries(rows.bias, row).items():
        logits[token_id] += value
    if rows.masks is not None and rows.mask_idx is not None and rows.mask_idx[row] >= 0:
        words = rows.masks[rows.mask_idx[row]]
        ids = np.arange(len(logits))
        allowed = (words[ids // 32] >> (ids % 32).astype(np.uint32)) & 1
        logits[allowed == 0] = -np.inf
    return logits


def _choose(logits: F64, rows: SamplingRows, row: int) -> int:
    temperature = float(rows.temperature[row])
    if temperature == 0.0:
        return int(np.argmax(logits))
    logits = _filtered(logits / temperature, rows, row)
    key = (int(rows.seeds[row]), int(rows.positions[row]), int(rows.sample_idx[row]))
    return int(np.argmax(logits + _noise(*key, len(logits))))


@lru_cache(maxsize=100_000)
def _noise(seed: int, position: int, sample_idx: int, vocab_size: int) -> F64:
    """The Gumbel noise of every token, four to a counter."""
    counters = np.zeros((-(-vocab_size // 4), 4), np.uint64)
    counters[:, 0] = position
    counters[:, 1] = np.arange(len(counters))
    counters[:, 2] = sample_idx
    words = philox4x32(counters, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:vocab_size]
    noise: F64 = -np.log(-np.log((words.astype(np.float64) + 0.5) / 2.0**32))
    return noise


def _filtered(logits: F64, rows: SamplingRows, row: int) -> F64:
    min_p, top_k, top_p = float(rows.min_p[row]), int(rows.top_k[row]), float(rows.top_p[row])
    logits = np.where(logits >= logits.max() + np.log(min_p), logits, -np.inf) if min_p else logits
    order = np.argsort(-logits, kind="stable")
    if top_k:
        logits[order[top_k:]] = -np.inf
    if top_p < 1.0:
        probs = np.exp(logits - np.logaddexp.reduce(logits))[order]
        before = np.cumsum(probs) - probs
        logits[order[before >= top_p]] = -np.inf
    return logits
