"""Step batches for backends, made without an engine: each sequence has blocks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hasten.kernels.step import GroupTables, SamplingRows, StepBatch

I32 = npt.NDArray[np.int32]

BLOCK_SIZE = 16


def greedy_rows(
    num_rows: int, target_ids: I32 | None = None, num_logprobs: int = 0
) -> SamplingRows:
    """Greedy rows with the chosen token's log-probability, or scoring rows of `target_ids`."""
    zeros = np.zeros(num_rows, np.float32)
    ones = np.ones(num_rows, np.float32)
    return SamplingRows(
        temperature=zeros,
        top_k=np.zeros(num_rows, np.int32),
        top_p=ones,
        min_p=zeros,
        repetition_penalty=ones,
        frequency_penalty=zeros,
        presence_penalty=zeros,
        seeds=np.arange(num_rows, dtype=np.uint64),
        positions=np.zeros(num_rows, np.int32),
        sample_idx=np.zeros(num_rows, np.int32),
        num_logprobs=np.full(num_rows, num_logprobs, np.int32),
        target_ids=np.full(num_rows, -1, np.int32) if target_ids is None else target_ids,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one sequence, from position `start` on."""

    sequence: int
    start: int
    token_ids: Sequence[int]


class Sequences:
    """Block tables of `num_sequences` sequences of up to `max_len` tokens, one KV group."""

    def __init__(self, num_sequences: int, max_len: int, num_groups: int = 1) -> None:
        per_sequence = -(-max_len // BLOCK_SIZE)
        self.num_blocks = num_sequences * per_sequence + 1
        self.tables = np.arange(1, self.num_blocks, dtype=np.int32).reshape(num_sequences, -1)
        self.num_groups = num_groups

    def batch(
        self,
        parts: Sequence[Part],
        sampling: SamplingRows | None = None,
        logit_rows: I32 | None = None,
    ) -> StepBatch:
        """One step; logits for the last row of each part unless told."""
        lengths = [len(part.token_ids) for part in parts]
        starts = np.cumsum([0, *lengths], dtype=np.int32)
        positions = np.concatenate(
            [part.start + np.arange(n) for part, n in zip(parts, lengths, strict=True)]
        ).astype(np.int32)
        owners = np.repeat([part.sequence for part in parts], lengths)
        slots = self.tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        rows = starts[1:] - 1 if logit_rows is None else logit_rows
        group = GroupTables(slots.astype(np.int32), self.tables, np.zeros((0, 2), np.int32))
        return StepBatch(
            token_ids=np.concatenate([np.asarray(p.token_ids, np.int32) for p in parts]),
            positions=positions,
            query_starts=starts,
            seq_lens=np.array([p.start + len(p.token_ids) for p in parts], np.int32),
            table_rows=np.array([part.sequence for part in parts], np.int32),
            groups=(group,) * self.num_groups,
            logit_rows=rows,
            sampling=sampling or greedy_rows(len(rows)),
        )
