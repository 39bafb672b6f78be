"""Lays a step plan out flat: the `StepBatch` that reaches a backend.

Per-request numbers live in slot arrays (slot = the request's block-table row), so that a step
gathers them instead of walking over the requests' parameters. Block tables are passed as the
block manager keeps them, without a copy. A step in which every request decodes one token, the
common case, takes shortcuts that give the same arrays, above all after another of the same requests
(`core.steady_decode`).

Exercised by `pytest tests/unit/core/test_batch.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from hasten.core.protocols import MaskJob
from hasten.core.sampling_state import RowEdits, SlotParameters
from hasten.core.steady_decode import LoneDecode, SteadyDecode
from hasten.kernels.step import GroupTables, SamplingRows, SparseRows, StepBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.core.plan import PlannedRequest, StepPlan
    from hasten.core.protocols import Grammars
    from hasten.core.request import Request, RequestId
    from hasten.core.sampling_state import Entries
    from hasten.kernels.program import Capacity
    from hasten.kernels.step import I32


class BlockTables(Protocol):
    """What the batch needs of the block manager."""

    block_size: int

    @property
    def tables(self) -> Sequence[I32]:
        """By group [num_table_rows, max_blocks]."""
        ...

    def table_row(self, request_id: RequestId) -> int: ...


class BatchBuilder:
    """Builds the batches of one engine; the arrays of a batch are valid until the next `build`."""

    def __init__(
        self,
        capacity: Capacity,
        vocab_size: int,
        blocks: BlockTables,
        grammars: Grammars | None = None,
    ) -> None:
        self._blocks = blocks
        self._grammars = grammars
        self._constrained: set[int] = set()
        self._shift = blocks.block_size.bit_length() - 1
        num_slots = len(blocks.tables[0])
        self._owners: list[Request | None] = [None] * num_slots
        self._params = SlotParameters(num_slots, vocab_size)
        self._edits: dict[int, RowEdits] = {}
        self._scoring: set[int] = set()
        longest = max(capacity.max_tokens, num_slots, capacity.max_model_len)
        self._iota = np.arange(longest + 2, dtype=np.int32)
        self._unscored = np.full(capacity.max_tokens, -1, np.int32)
        self._no_copies = np.zeros((0, 2), np.int32)
        self._steady: SteadyDecode | LoneDecode | None = None

    def build(self, plan: StepPlan, requests: Mapping[RequestId, Request]) -> StepBatch:
        """The batch of `plan`. Modifies the slots of requests it has not met there before."""
        if self._steady is not None:
            moved = self._steady.move_on(plan, requests, self._blocks)
            if moved is not None:
                return moved
        planned = plan.requests
        slots = self._bind_slots(planned, requests)
        tokens = _token_ids(planned, requests)
        starts = np.array([p.start for p in planned], np.int32)
        table_rows = np.array(slots, np.int32)
        if len(tokens) == len(planned):
            query_starts = self._iota[: len(planned) + 1]
            positions, token_slots = starts, table_rows
            seq_lens = starts + 1
        else:
            lens = np.array([p.num_tokens for p in planned], np.int32)
            query_starts = _offsets(lens)
            positions = self._iota[: len(tokens)] + np.repeat(starts - query_starts[:-1], lens)
            token_slots = np.repeat(table_rows, lens)
            seq_lens = starts + lens
        num_logit_rows = [p.num_logit_rows for p in planned]
        logit_rows, logit_slots = self._logit_rows(num_logit_rows, query_starts, table_rows)
        batch = StepBatch(
            token_ids=np.array(tokens, np.int32),
            positions=positions,
            query_starts=query_starts,
            seq_lens=seq_lens,
            table_rows=table_rows,
            groups=self._groups(plan, positions, token_slots),
            logit_rows=logit_rows,
            sampling=self._sampling(
                planned, requests, slots, logit_slots, positions.take(logit_rows) + 1
            ),
        )
        self._steady = self._steady_decode(batch, plan, requests, slots)
        return batch

    def _steady_decode(
        self,
        batch: StepBatch,
        plan: StepPlan,
        requests: Mapping[RequestId, Request],
        slots: list[int],
    ) -> SteadyDecode | LoneDecode | None:
        """How to go on from this batch; None where more will change than tokens and positions, and
        the number of drafts of one request.
        """
        num_requests, num_rows = len(slots), batch.num_logit_rows
        has_drafts = num_rows > num_requests
        if batch.num_tokens != num_rows or (has_drafts and num_requests > 1):
            return None
        changing = (self._constrained, self._scoring, self._edits.keys())
        if plan.block_copies or self._params.any_mask:
            return None
        if not all(each.isdisjoint(slots) for each in changing):
            return None
        if num_requests == 1:
            request = requests[plan.requests[0].request_id]
            return LoneDecode.of(request, slots[0], batch.sampling, self._iota, self._no_copies)
        return SteadyDecode(
            batch,
            [requests[p.request_id] for p in plan.requests],
            slots,
            [p.start for p in plan.requests],
        )

    def _bind_slots(
        self, planned: Sequence[PlannedRequest], requests: Mapping[RequestId, Request]
    ) -> list[int]:
        owners, table_row = self._owners, self._blocks.table_row
        slots = []
        for p in planned:
            slot = table_row(p.request_id)
            request = requests[p.request_id]
            if owners[slot] is not request:
                self._bind(slot, request)
            slots.append(slot)
        return slots

    def _bind(self, slot: int, request: Request) -> None:
        self._owners[slot] = request
        self._params.bind(slot, request)
        self._edits.pop(slot, None)
        if RowEdits.needed_by(request.params):
            self._edits[slot] = RowEdits(request)
        self._constrained.discard(slot)
        if request.params.grammar:
            self._constrained.add(slot)
        self._scoring.discard(slot)
        if request.scores_prompt:
            self._scoring.add(slot)

    def _logit_rows(self, counts: list[int], query_starts: I32, table_rows: I32) -> tuple[I32, I32]:
        """The last `counts[r]` rows of every request, and the slot that each belongs to."""
        num_rows = sum(counts)
        if num_rows == len(counts) and max(counts) == 1:
            return query_starts[1:] - 1, table_rows
        per_request = np.array(counts, np.int32)
        shift = np.repeat(query_starts[1:] - np.cumsum(per_request, dtype=np.int32), per_request)
        return self._iota[:num_rows] + shift, np.repeat(table_rows, per_request)

    def _groups(self, plan: StepPlan, positions: I32, token_slots: I32) -> tuple[GroupTables, ...]:
        shift = self._shift
        block_idx, offsets = positions >> shift, positions & ((1 << shift) - 1)
        groups = []
        for group_id, tables in enumerate(self._blocks.tables):
            slot_mapping = tables[token_slots, block_idx]
            slot_mapping <<= shift
            slot_mapping += offsets
            copies = self._no_copies if not plan.block_copies else _copies(plan, group_id)
            groups.append(GroupTables(slot_mapping, tables, copies))
        return tuple(groups)

    def _sampling(
        self,
        planned: Sequence[PlannedRequest],
        requests: Mapping[RequestId, Request],
        slots: list[int],
        logit_slots: I32,
        positions: I32,
    ) -> SamplingRows:
        floats, ints, seeds = self._params.take(logit_slots)
        sampling = SamplingRows(
            temperature=floats[0],
            top_k=ints[0],
            top_p=floats[1],
            min_p=floats[2],
            repetition_penalty=floats[3],
            frequency_penalty=floats[4],
            presence_penalty=floats[5],
            seeds=seeds,
            positions=positions,
            sample_idx=ints[1],
            num_logprobs=ints[2],
            target_ids=self._unscored[: len(logit_slots)],
        )
        if self._params.any_mask:
            sampling.mask_idx, sampling.masks = ints[3], self._params.masks
        if not self._constrained.isdisjoint(slots):
            sampling.mask_idx = ints[3]
            self._begin_masks(planned, requests, slots, sampling)
        if not self._scoring.isdisjoint(slots):
            self._score_prompts(planned, requests, sampling)
        if not self._edits.keys().isdisjoint(slots):
            self._edit_rows(planned, requests, slots, sampling)
        return sampling

    def _score_prompts(
        self,
        planned: Sequence[PlannedRequest],
        requests: Mapping[RequestId, Request],
        sampling: SamplingRows,
    ) -> None:
        """Rows in a prompt that is scored take its next token instead of choosing one."""
        sampling.target_ids = sampling.target_ids.copy()
        end = 0
        for p in planned:
            row, end = end, end + p.num_logit_rows
            request = requests[p.request_id]
            if row == end or not request.scores_prompt:
                continue
            scored = scored_prompt_tokens(p, request)
            rows = slice(row, row + len(scored))
            sampling.target_ids[rows] = request.token_ids[scored.start : scored.stop]
            sampling.num_logprobs[rows] = request.params.prompt_logprobs or 0

    def _begin_masks(
        self,
        planned: Sequence[PlannedRequest],
        requests: Mapping[RequestId, Request],
        slots: list[int],
        sampling: SamplingRows,
    ) -> None:
        """Give rows that a grammar rules masks, which are written while the model runs."""
        assert self._grammars is not None
        assert sampling.mask_idx is not None
        jobs: list[MaskJob] = []
        num_masks = end = 0
        for p, slot in zip(planned, slots, strict=True):
            end += p.num_logit_rows
            request = requests[p.request_id]
            if slot not in self._constrained or not chooses_tokens(p, request):
                continue
            num_rows = p.num_drafts + 1
            jobs.append(MaskJob(request, request.draft_token_ids[: p.num_drafts], num_masks))
            first = len(self._owners) + num_masks
            sampling.mask_idx[end - num_rows : end] = np.arange(first, first + num_rows)
            num_masks += num_rows
        sampling.masks = self._params.reserve_masks(num_masks)
        sampling.masks_ready = np.zeros(1, np.int32)
        begin = len(self._owners)
        rows = sampling.masks[begin : begin + num_masks]
        self._grammars.begin_masks(jobs, rows, sampling.masks_ready)

    def _edit_rows(
        self,
        planned: Sequence[PlannedRequest],
        requests: Mapping[RequestId, Request],
        slots: list[int],
        sampling: SamplingRows,
    ) -> None:
        num_rows = len(sampling.positions)
        counts: list[Entries | None] = [None] * num_rows
        bias: list[Entries | None] = [None] * num_rows
        end = 0
        for p, slot in zip(planned, slots, strict=True):
            end += p.num_logit_rows
            edits = self._edits.get(slot)
            request = requests[p.request_id]
            if edits is None or not chooses_tokens(p, request):
                continue
            drafts = request.draft_token_ids[: p.num_drafts]
            counts[end - p.num_drafts - 1 : end] = edits.counts(drafts)
            bias[end - p.num_drafts - 1 : end] = edits.bias(drafts)
        sampling.counts = _sparse(counts)
        sampling.bias = _sparse(bias)


def chooses_tokens(planned: PlannedRequest, request: Request) -> bool:
    """Whether the step reaches the end of what is accepted, so that its last rows choose tokens."""
    return planned.start + planned.num_tokens - planned.num_drafts >= request.num_tokens


def scored_prompt_tokens(planned: PlannedRequest, request: Request) -> range:
    """Which prompt tokens the first logit rows of this request score, one row each.

    A row scores the token behind it, so the prompt's first token is never scored.
    """
    first = planned.start + planned.num_tokens - planned.num_logit_rows + 1
    return range(first, min(first + planned.num_logit_rows, request.num_prompt_tokens))


def _token_ids(
    planned: Sequence[PlannedRequest], requests: Mapping[RequestId, Request]
) -> list[int]:
    tokens: list[int] = []
    for p in planned:
        request = requests[p.request_id]
        if p.num_tokens == 1:
            tokens.append(request.token_ids[p.start])
            continue
        tokens += request.token_ids[p.start : p.start + p.num_tokens - p.num_drafts]
        tokens += request.draft_token_ids[: p.num_drafts]
    return tokens


def _offsets(lens: I32) -> I32:
    """[0, lens[0], lens[0] + lens[1], ...]."""
    offsets = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=offsets[1:])
    return offsets


def _copies(plan: StepPlan, group_id: int) -> I32:
    pairs = [(c.source, c.destination) for c in plan.block_copies if c.group_id == group_id]
    return np.array(pairs, np.int32).reshape(-1, 2)


def _sparse(rows: list[Entries | None]) -> SparseRows | None:
    """Concatenate; None when no row has entries."""
    filled = [row for row in rows if row is not None and len(row[0])]
    if not filled:
        return None
    lens = np.array([0 if row is None else len(row[0]) for row in rows], np.int32)
    return SparseRows(
        starts=_offsets(lens),
        token_ids=np.concatenate([ids for ids, _ in filled]),
        values=np.concatenate([values for _, values in filled]),
    )
