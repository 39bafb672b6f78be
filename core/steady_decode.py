"""Steps in which the same requests decode, one after another: most steps there are.

Such a step's batch is that of the step before, moved on; drafts count where there is one request
only. Laying it out anew takes three times as long, mostly to find in memory what the model has
driven out of the processor's caches. Exercised by `pytest tests/unit/core/test_batch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hasten.core.draft_counters import MAX_DEPTH
from hasten.kernels.step import GroupTables, SamplingRows, StepBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.core.batch import BlockTables
    from hasten.core.plan import StepPlan
    from hasten.core.request import Request, RequestId
    from hasten.kernels.step import I32
    from numpy.typing import NDArray


@dataclass(slots=True)
class SteadyDecode:
    """The batch of the last step: request i decoded at position `positions[i]` out of `slots[i]`.

    Every request has one row, whose logits are wanted, and nothing of it but its token and its
    position changes from step to step. The batch's arrays must be its own.
    """

    batch: StepBatch
    requests: Sequence[Request]
    slots: Sequence[int]
    positions: list[int]

    def move_on(
        self, plan: StepPlan, requests: Mapping[RequestId, Request], blocks: BlockTables
    ) -> StepBatch | None:
        """The batch of `plan`; None, and nothing is changed, where it is not such a step."""
        if plan.block_copies or len(plan.requests) != len(self.requests):
            return None
        tokens: list[int] = []
        entering = []  # rows at the first position of a block
        for p, request, slot, position in zip(
            plan.requests, self.requests, self.slots, self.positions, strict=True
        ):
            if (
                p.start != position + 1
                or p.num_tokens != 1
                or p.num_logit_rows != 1
                or requests.get(p.request_id) is not request
                or blocks.table_row(p.request_id) != slot
            ):
                return None
            if p.start % blocks.block_size == 0:
                entering.append(len(tokens))
            tokens.append(request.token_ids[p.start])
        batch = self.batch
        batch.token_ids[:] = tokens
        batch.positions += 1
        batch.seq_lens += 1
        batch.sampling.positions += 1
        for group, table in zip(batch.groups, blocks.tables, strict=True):
            np.add(group.slot_mapping, 1, out=group.slot_mapping)
            for row in entering:
                block = table[self.slots[row], plan.requests[row].start // blocks.block_size]
                group.slot_mapping[row] = block * blocks.block_size
        self.positions = [position + 1 for position in self.positions]
        return batch


@dataclass(slots=True)
class LoneDecode:
    """One request that decodes alone out of `slot`, with drafts or without.

    `sampling` has its parameters in every row, `iota` counts from 0 past every position.
    """

    request: Request
    slot: int
    sampling: SamplingRows
    iota: I32
    table_rows: I32
    no_copies: I32

    @classmethod
    def of(
        cls, request: Request, slot: int, sampling: SamplingRows, iota: I32, no_copies: I32
    ) -> LoneDecode:
        """`sampling` is that of rows of the request."""
        all_rows = _each(sampling, lambda column: np.repeat(column[:1], MAX_DEPTH + 1))
        table_rows = np.array([slot], np.int32)
        return cls(request, slot, all_rows, iota, table_rows, no_copies)

    def move_on(
        self, plan: StepPlan, requests: Mapping[RequestId, Request], blocks: BlockTables
    ) -> StepBatch | None:
        """The batch of `plan`; None where it is not such a step."""
        if plan.block_copies or len(plan.requests) != 1:
            return None
        p, request = plan.requests[0], self.request
        num_rows, end = p.num_tokens, p.start + p.num_tokens
        if (
            num_rows != p.num_logit_rows
            or num_rows != p.num_drafts + 1
            or requests.get(p.request_id) is not request
            or blocks.table_row(p.request_id) != self.slot
        ):
            return None
        tokens = request.token_ids[p.start : p.start + 1]
        if p.num_drafts:
            tokens = [*tokens, *request.draft_token_ids[: p.num_drafts]]
        sampling = _each(self.sampling, lambda column: column[:num_rows])
        sampling.positions = self.iota[p.start + 1 : end + 1]
        return StepBatch(
            token_ids=np.array(tokens, np.int32),
            positions=self.iota[p.start : end],
            query_starts=np.array((0, num_rows), np.int32),
            seq_lens=np.array((end,), np.int32),
            table_rows=self.table_rows,
            groups=tuple(
                GroupTables(
                    _slots(table[self.slot], p.start, end, blocks.block_size),
                    table,
                    self.no_copies,
                )
                for table in blocks.tables
            ),
            logit_rows=self.iota[:num_rows],
            sampling=sampling,
        )


def _each(rows: SamplingRows, change: Callable[[NDArray[Any]], NDArray[Any]]) -> SamplingRows:
    """The columns that every step has, each changed."""
    return SamplingRows(
        change(rows.temperature),
        change(rows.top_k),
        change(rows.top_p),
        change(rows.min_p),
        change(rows.repetition_penalty),
        change(rows.frequency_penalty),
        change(rows.presence_penalty),
        change(rows.seeds),
        change(rows.positions),
        change(rows.sample_idx),
        change(rows.num_logprobs),
        change(rows.target_ids),
    )


def _slots(table: I32, start: int, end: int, block_size: int) -> I32:
    """The slots of positions [start, end) of a request with this block table."""
    first, offset = divmod(start, block_size)
    if offset + end - start <= block_size:
        slot = int(table[first]) * block_size + offset
        return np.arange(slot, slot + end - start, dtype=np.int32)
    positions = np.arange(start, end, dtype=np.int32)
    slots: I32 = table[positions // block_size] * block_size + positions % block_size
    return slots
