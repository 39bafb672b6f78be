"""The batches of drafting passes: rows are added request by request, then run together.

A pass samples as the request itself would, with the same noise, so that drafter and target choose
alike wherever they agree; penalties and other adjustments by history are left out, which costs
acceptance only. A head that knows fewer tokens than the target guesses greedily: its noise would be
that of other tokens. Exercised by `pytest tests/cpu/spec/test_drafters.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hasten.core.models.eagle import FEATURES, HIDDEN
from hasten.core.models.weights import EMBED
from hasten.core.sampling_state import SlotParameters
from hasten.kernels.step import GroupTables, SamplingRows, StepBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.core.blocks import BlockManager
    from hasten.core.drafter import Drafter
    from hasten.core.request import Request, RequestId
    from hasten.kernels.program import Buffer
    from hasten.kernels.step import F32, I32


LEAST_SHARED = 0.5
"""Confidence in an improbable token that was chosen with the target's own noise."""


class DraftRows:
    """The rows of one pass. After a pass of a head, `run` keeps the hidden states of its guesses
    for the next, whose rows must be those of requests that were in it.
    """

    def __init__(self, drafter: Drafter, blocks: BlockManager) -> None:
        self._drafter = drafter
        self._blocks = blocks
        num_slots = len(blocks.tables[0])
        self._params = SlotParameters(num_slots, drafter.model.weights[EMBED].shape[0])
        self._owners: list[Request | None] = [None] * num_slots
        self._is_greedy = drafter.model.draft_ids is not None
        inputs = drafter.model.program.inputs
        rows = drafter.capacity.max_tokens
        self._features = np.zeros((rows, _width(inputs, FEATURES)), np.float32)
        self._hidden = np.zeros((rows, _width(inputs, HIDDEN)), np.float32)
        self._guess_rows: dict[RequestId, int] = {}
        self._guess_hidden: F32 = np.zeros((0, self._hidden.shape[1]), np.float32)
        self.begin()

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def begin(self) -> None:
        """Forget the rows of the pass before."""
        self._tokens: list[int] = []
        self._starts: list[int] = []
        self._lens: list[int] = []
        self._slots: list[int] = []
        self._guessing: list[int] = []  # requests of this pass, by their order
        self._requests: list[Request] = []
        self._is_chained = False

    def blocks_of(self, request: Request) -> I32:
        """The request's row in the table of the drafter's first group."""
        table = self._blocks.tables[self._drafter.group_ids.start]
        row: I32 = table[self._blocks.table_row(request.request_id)]
        return row

    def add_tokens(self, request: Request, start: int, end: int, *, wants_guess: bool) -> None:
        """Tokens [start, end) of a request; a guess after the last one, or none."""
        self._add(request, request.token_ids[start:end], start, wants_guess=wants_guess)

    def add_draft(self, request: Request, position: int, token_id: int) -> None:
        """A drafted token, and a guess after it."""
        self._is_chained = True
        self._add(request, [token_id], position, wants_guess=True)

    def run(self) -> tuple[list[int], list[float]]:
        """The guesses, in order of the rows that want one, and the confidence in each.

        That of a greedy guess is its probability. Where the noise is shared, a guess that both find
        improbable is the same guess still: there even the least probable has some confidence.
        """
        batch = self._batch()
        if self._drafter.features is not None:
            self._set_inputs(batch)
        result = self._drafter.run(batch)
        chosen = result.token_ids
        if self._drafter.model.draft_ids is not None:
            chosen = self._drafter.model.draft_ids[chosen]
        if self._drafter.features is not None:
            self._guess_hidden = self._drafter.executable.tap(HIDDEN).copy()
            self._guess_rows = {
                self._requests[idx].request_id: row for row, idx in enumerate(self._guessing)
            }
        confidences = np.exp(result.logprobs)
        is_sampled = batch.sampling.temperature > 0
        confidences[is_sampled] = LEAST_SHARED + (1 - LEAST_SHARED) * confidences[is_sampled]
        return chosen.tolist(), confidences.tolist()

    def _add(self, request: Request, tokens: list[int], start: int, *, wants_guess: bool) -> None:
        slot = self._blocks.table_row(request.request_id)
        if self._owners[slot] is not request:
            self._params.bind(slot, request)
            self._owners[slot] = request
        if wants_guess:
            self._guessing.append(len(self._lens))
        self._tokens += tokens
        self._starts.append(start)
        self._lens.append(len(tokens))
        self._slots.append(slot)
        self._requests.append(request)

    def _batch(self) -> StepBatch:
        lens, starts = np.array(self._lens, np.int32), np.array(self._starts, np.int32)
        query_starts = np.zeros(len(lens) + 1, np.int32)
        np.cumsum(lens, out=query_starts[1:])
        shift = np.repeat(starts - query_starts[:-1], lens)
        positions = np.arange(len(self._tokens), dtype=np.int32) + shift
        table_rows = np.array(self._slots, np.int32)
        logit_rows = query_starts[1:][self._guessing] - 1
        return StepBatch(
            token_ids=np.array(self._tokens, np.int32),
            positions=positions,
            query_starts=query_starts,
            seq_lens=starts + lens,
            table_rows=table_rows,
            groups=self._groups(positions, np.repeat(table_rows, lens)),
            logit_rows=logit_rows,
            sampling=self._sampling(table_rows[self._guessing], positions[logit_rows] + 1),
        )

    def _groups(self, positions: I32, token_slots: I32) -> tuple[GroupTables, ...]:
        """The target's groups are not touched: their rows go to the null block."""
        no_copies = np.zeros((0, 2), np.int32)
        return tuple(
            GroupTables(
                self._slot_mapping(group_id, positions, token_slots)
                if group_id in self._drafter.group_ids
                else np.zeros(len(positions), np.int32),
                table,
                no_copies,
            )
            for group_id, table in enumerate(self._blocks.tables)
        )

    def _slot_mapping(self, group_id: int, positions: I32, token_slots: I32) -> I32:
        size = self._blocks.block_size
        blocks = self._blocks.tables[group_id][token_slots, positions // size]
        mapping: I32 = blocks * np.int32(size) + positions % size
        return mapping

    def _sampling(self, slots: I32, positions: I32) -> SamplingRows:
        floats, ints, seeds = self._params.take(slots)
        num_rows = len(slots)
        temperature = np.zeros(num_rows, np.float32) if self._is_greedy else floats[0]
        off = np.zeros(num_rows, np.float32)
        sampling = SamplingRows(
            temperature=temperature,
            top_k=ints[0],
            top_p=floats[1],
            min_p=floats[2],
            repetition_penalty=np.ones(num_rows, np.float32),
            frequency_penalty=off,
            presence_penalty=off,
            seeds=seeds,
            positions=positions,
            sample_idx=ints[1],
            num_logprobs=np.zeros(num_rows, np.int32),
            target_ids=np.full(num_rows, -1, np.int32),
        )
        if self._params.any_mask and not self._is_greedy:
            sampling.mask_idx, sampling.masks = ints[3], self._params.masks
        return sampling

    def _set_inputs(self, batch: StepBatch) -> None:
        store = self._drafter.features
        assert store is not None
        num_rows = batch.num_tokens
        features, hidden = self._features[:num_rows], self._hidden[:num_rows]
        if self._is_chained:
            features.fill(0.0)
            rows = [self._guess_rows[request.request_id] for request in self._requests]
            hidden[:] = self._guess_hidden[rows]
        else:
            before = np.maximum(batch.positions - 1, 0)
            slots = np.repeat(batch.table_rows, np.diff(batch.query_starts))
            group_id = self._drafter.group_ids.start
            features[:] = store.at(self._slot_mapping(group_id, before, slots), batch.positions > 0)
            hidden.fill(0.0)
        self._drafter.executable.set_input(FEATURES, features)
        self._drafter.executable.set_input(HIDDEN, hidden)


def _width(inputs: Mapping[str, Buffer], name: str) -> int:
    """Columns of an input; 1 where the drafter has none."""
    return inputs[name].width if name in inputs else 1
