"""The cases of `sample` and `gather_rows`: logits that are embedded, gathered and sampled.

Every row is one request of one token, so a row's logits are a row of the embedding table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from hasten.kernels import ops
from hasten.kernels.conformance.oracles import SamplingRecord
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Program, Rows, WeightName
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import SamplingRows, SparseRows, StepBatch
from hasten.kernels.weights import DenseWeight, Weight

NUM_ROWS = 24
MAX_LOGIT_ROWS = 7
"""The capacity of the head: several slices per step, the last one not full."""

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingCase:
    """Rows of logits [num_rows, vocab] and what each of them asks for."""

    op: str
    name: str
    logits: F32
    records: tuple[SamplingRecord, ...]

    def program(self) -> tuple[Program, dict[WeightName, Weight]]:
        vocab_size = self.logits.shape[1]
        program = Program(vocab_size, kv_groups=())
        body = program.buffer("rows", Rows.TOKENS, vocab_size, DType.F32)
        logits = program.buffer("logits", Rows.LOGITS, vocab_size, DType.F32)
        table = WeightName("table")
        program.add(ops.Embed(table, body))
        program.add(ops.GatherRows(body, logits))
        program.add(ops.Sample(logits))
        return program, {table: DenseWeight(self.logits)}

    def batch(self, rows: Sequence[int]) -> StepBatch:
        """A step over some of the rows, in reverse: logit row i is token row n - 1 - i."""
        num_rows = len(rows)
        counting = np.arange(num_rows, dtype=np.int32)
        return StepBatch(
            token_ids=np.array(rows, dtype=np.int32)[::-1].copy(),
            positions=np.zeros(num_rows, dtype=np.int32),
            query_starts=np.arange(num_rows + 1, dtype=np.int32),
            seq_lens=np.ones(num_rows, dtype=np.int32),
            table_rows=counting,
            groups=(),
            logit_rows=counting[::-1].copy(),
            sampling=sampling_rows([self.records[row] for row in rows], self.logits.shape[1]),
        )


def sampling_rows(records: Sequence[SamplingRecord], vocab_size: int) -> SamplingRows:
    """The arrays that say what `records` say."""
    rows = greedy_rows(len(records))
    for row, record in enumerate(records):
        rows.temperature[row] = record.temperature
        rows.top_k[row] = record.top_k
        rows.top_p[row] = record.top_p
        rows.min_p[row] = record.min_p
        rows.repetition_penalty[row] = record.repetition_penalty
        rows.frequency_penalty[row] = record.frequency_penalty
        rows.presence_penalty[row] = record.presence_penalty
        rows.seeds[row] = record.seed
        rows.positions[row] = record.position
        rows.sample_idx[row] = record.sample_idx
        rows.num_logprobs[row] = record.num_logprobs
        rows.target_ids[row] = record.target_id
    if any(record.counts for record in records):
        rows.counts = _sparse([record.counts for record in records])
    if any(record.bias for record in records):
        rows.bias = _sparse([record.bias for record in records])
    if any(record.allowed is not None for record in records):
        rows.mask_idx, rows.masks = _masks(records, vocab_size)
    return rows


def _sparse(entries: Sequence[Sequence[tuple[int, float]]]) -> SparseRows:
    starts = np.cumsum([0, *(len(row) for row in entries)]).astype(np.int32)
    flat = [entry for row in entries for entry in row]
    return SparseRows(
        starts,
        np.array([token_id for token_id, _ in flat], dtype=np.int32),
        np.array([value for _, value in flat], dtype=np.float32),
    )


def _masks(
    records: Sequence[SamplingRecord], vocab_size: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint32]]:
    mask_idx = np.full(len(records), -1, dtype=np.int32)
    masks: list[npt.NDArray[np.uint32]] = []
    for row, record in enumerate(records):
        if record.allowed is not None:
            mask_idx[row] = len(masks)
            bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
            bits[list(record.allowed)] = 1
            masks.append(np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32))
    return mask_idx, np.stack(masks)


def sampling_cases() -> Iterator[SamplingCase]:
    """Every case. Vocabularies are odd, and one has more tokens than a filter would sort."""
    rng = np.random.default_rng(5)
    yield _gather_case(rng)
    for vocab_size in (1, 97, 5003):
        logits = (3 * rng.standard_normal((NUM_ROWS, vocab_size))).astype(np.float32)
        for name, record in _records(vocab_size).items():
            records = tuple(_varied(record, row) for row in range(NUM_ROWS))
            yield SamplingCase("sample", f"{name}, vocabulary {vocab_size}", logits, records)
    yield _mixed_case(rng)
    yield _tied_case()


def _gather_case(rng: np.random.Generator) -> SamplingCase:
    logits = rng.standard_normal((NUM_ROWS, 19)).astype(np.float32)
    everything = SamplingRecord(num_logprobs=19)
    return SamplingCase("gather_rows", "24 rows in 4 slices", logits, (everything,) * NUM_ROWS)


def _records(vocab_size: int) -> dict[str, SamplingRecord]:
    """One record per behaviour."""
    drawn = SamplingRecord(temperature=1.0, num_logprobs=min(20, vocab_size))
    some = tuple(range(0, vocab_size, 3))
    penalized = SamplingRecord(
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=-0.7,
        counts=tuple((token_id, token_id % 4) for token_id in some),
    )
    return {
        "greedy": SamplingRecord(),
        "greedy, logprobs": SamplingRecord(num_logprobs=min(5, vocab_size)),
        "temperature": drawn,
        "temperature 0.3": replace(drawn, temperature=0.3),
        "temperature 2": replace(drawn, temperature=2.0),
        "top_k": replace(drawn, top_k=5),
        "top_k 1": replace(drawn, top_k=1),
        "top_k over the vocabulary": replace(drawn, top_k=vocab_size + 9),
        "top_p": replace(drawn, top_p=0.8),
        "top_p 0.999": replace(drawn, top_p=0.999, temperature=2.0),
        "top_p tiny": replace(drawn, top_p=1e-6),
        "min_p": replace(drawn, min_p=0.05),
        "min_p 1": replace(drawn, min_p=1.0),
        "all filters": replace(drawn, top_k=5, top_p=0.8, min_p=0.05),
        "penalties": penalized,
        "penalties, drawn": replace(penalized, temperature=0.8, num_logprobs=0),
        "bias": SamplingRecord(bias=tuple((token_id, 2.5) for token_id in some)),
        "forbidden": SamplingRecord(bias=tuple((i, float("-inf")) for i in range(1, vocab_size))),
        "allowed": SamplingRecord(temperature=1.0, allowed=some),
        "scored": SamplingRecord(target_id=vocab_size - 1, num_logprobs=0),
    }


def _varied(record: SamplingRecord, row: int) -> SamplingRecord:
    """The record with a seed, position and sample of its own; seeds use all 64 bits."""
    seed = (row * 0x9E3779B97F4A7C15 + 1) % 2**64
    return replace(record, seed=seed, position=1000 * row + 3, sample_idx=row % 3)


def _mixed_case(rng: np.random.Generator) -> SamplingCase:
    """Every behaviour in one batch."""
    vocab_size = 301
    behaviours = list(_records(vocab_size).values())
    records = tuple(_varied(record, row) for row, record in enumerate(behaviours))
    logits = (3 * rng.standard_normal((len(records), vocab_size))).astype(np.float32)
    return SamplingCase(
        "sample", f"all of these together, vocabulary {vocab_size}", logits, records
    )


def _tied_case() -> SamplingCase:
    """Equal logits: the lowest id wins, and filters keep lowest ids first."""
    logits = np.zeros((4, 50), dtype=np.float32)
    logits[:, 10::7] = 2.0
    drawn = SamplingRecord(temperature=1.0, seed=3, num_logprobs=9)
    records = (
        SamplingRecord(num_logprobs=9),
        replace(drawn, top_k=3),
        replace(drawn, top_k=8, position=4),
        replace(drawn, top_k=2, top_p=0.99, position=9),
    )
    return SamplingCase("sample", "ties", logits, records)
