"""Steps over given token ids, outside an engine: for calibration, probes and scoring.

Request i owns as many consecutive blocks as the longest sequence needs, in every KV group, so no
block manager is involved. Exercised by `pytest tests/unit/core/test_prompt_batch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hasten.kernels.backend import KVPlan
from hasten.kernels.program import KVGroupSpec
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import GroupTables, StepBatch

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Tokens [start, start + len) of one sequence; all before them were computed already."""

    token_ids: I32
    start: int = 0
    wants_logits: bool = False

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """Room for `num_requests` sequences of up to `max_len` tokens."""

    groups: tuple[KVGroupSpec, ...]
    num_requests: int
    max_len: int
    block_size: int = 16

    @property
    def blocks_per_request(self) -> int:
        return -(-self.max_len // self.block_size)

    def kv_plan(self) -> KVPlan:
        """The KV cache that holds it, null blocks included."""
        num_blocks = 1 + self.num_requests * self.blocks_per_request
        return KVPlan(self.groups, (num_blocks,) * len(self.groups), self.block_size)

    def batch(self, chunks: Sequence[PromptChunk]) -> StepBatch:
        """One step: chunk i belongs to request i. Rows that want logits score nothing."""
        positions = _joined([np.arange(chunk.start, chunk.stop) for chunk in chunks])
        first_slots = np.arange(len(chunks)) * self.blocks_per_request * self.block_size
        slots = _joined(
            [
                first + self.block_size + np.arange(chunk.start, chunk.stop)
                for first, chunk in zip(first_slots, chunks, strict=True)
            ]
        )
        blocks = 1 + np.arange(self.num_requests * self.blocks_per_request, dtype=np.int32)
        tables = blocks.reshape(self.num_requests, -1)
        query_starts = np.cumsum([0, *(len(chunk.token_ids) for chunk in chunks)], dtype=np.int32)
        logit_rows = _joined(
            [
                np.arange(at, at + len(chunk.token_ids) * chunk.wants_logits)
                for at, chunk in zip(query_starts, chunks, strict=False)
            ]
        )
        group = GroupTables(slots, tables, np.zeros((0, 2), np.int32))
        return StepBatch(
            token_ids=_joined([chunk.token_ids for chunk in chunks]),
            positions=positions,
            query_starts=query_starts,
            seq_lens=np.array([chunk.stop for chunk in chunks], np.int32),
            table_rows=np.arange(len(chunks), dtype=np.int32),
            groups=(group,) * len(self.groups),
            logit_rows=logit_rows,
            sampling=greedy_rows(len(logit_rows), positions=positions[logit_rows] + 1),
        )


def _joined(parts: Sequence[npt.NDArray[np.integer]]) -> I32:
    return np.concatenate(parts).astype(np.int32)
