"""The batches of drafting passes: rows are added request by request, then run together; what was
guessed can be followed at once by a pass for the guesses after those.

A pass samples as the request itself would, with the same noise, so that drafter and target choose
alike wherever they agree; penalties and other adjustments by history are left out, which costs
acceptance only. A head that knows fewer tokens than the target guesses greedily: its noise would be
that of other tokens. Exercised by `pytest tests/cpu/spec/test_drafters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.models.eagle import FEATURES, HIDDEN
from hasten.core.models.weights import EMBED
from hasten.core.sampling_state import SlotParameters
from hasten.kernels.step import GroupTables, SamplingRows, StepBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.drafter import Drafter
    from hasten.core.request import Request
    from hasten.kernels.program import Buffer
    from hasten.kernels.step import F32, I32, StepResult

LEAST_SHARED = 0.5
"""Confidence in an improbable token that was chosen with the target's own noise."""


@dataclass(slots=True)
class _Guesses:
    """What a pass guessed: the tokens, where they would lie, and whose they are."""

    token_ids: I32
    positions: I32
    slots: I32
    hidden: F32  # [guesses, hidden] of a head, else [guesses, 0]

    def take(self, kept: Sequence[int]) -> _Guesses:
        return _Guesses(
            self.token_ids[kept], self.positions[kept], self.slots[kept], self.hidden[kept]
        )


class DraftRows:
    """The rows of one pass, and the guesses of the last."""

    def __init__(self, drafter: Drafter, blocks: BlockManager) -> None:
        self._drafter = drafter
        self._blocks = blocks
        self._shift = blocks.block_size.bit_length() - 1
        num_slots = len(blocks.tables[0])
        self._params = SlotParameters(num_slots, drafter.model.weights[EMBED].shape[0])
        self._owners: list[Request | None] = [None] * num_slots
        self._is_greedy = drafter.model.draft_ids is not None
        inputs = drafter.model.program.inputs
        rows = drafter.capacity.max_tokens
        self._zero_features = np.zeros((rows, _width(inputs, FEATURES)), np.float32)
        self._zero_hidden = np.zeros((rows, _width(inputs, HIDDEN)), np.float32)
        self._features_are_zero = False
        no_tokens = np.zeros(0, np.int32)
        self._guesses = _Guesses(no_tokens, no_tokens, no_tokens, self._zero_hidden[:0])
        # What many batches have in common, as long as the longest.
        self._iota = np.arange(rows + 1, dtype=np.int32)
        self._no_ints, self._no_floats = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
        self._ones, self._unscored = np.ones(rows, np.float32), np.full(rows, -1, np.int32)
        self._no_seeds = np.zeros(rows, np.uint64)
        self._no_copies = np.zeros((0, 2), np.int32)
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

    def blocks_of(self, request: Request) -> I32:
        """The request's row in the table of the drafter's first group."""
        table = self._blocks.tables[self._drafter.group_ids.start]
        row: I32 = table[self._blocks.table_row(request.request_id)]
        return row

    def add_tokens(self, request: Request, start: int, end: int, *, wants_guess: bool) -> None:
        """Tokens [start, end) of a request; a guess after the last one, or none."""
        slot = self._blocks.table_row(request.request_id)
        if not self._is_greedy and self._owners[slot] is not request:
            self._params.bind(slot, request)
            self._owners[slot] = request
        if wants_guess:
            self._guessing.append(len(self._lens))
        self._tokens += request.token_ids[start:end]
        self._starts.append(start)
        self._lens.append(end - start)
        self._slots.append(slot)

    def run(self) -> tuple[list[int], list[float]]:
        """The guesses, in order of the requests that want one, and the confidence in each.

        That of a greedy guess is its probability. Where the noise is shared, a guess that both find
        improbable is the same guess still: there even the least probable has some confidence.
        """
        lens, starts = np.array(self._lens, np.int32), np.array(self._starts, np.int32)
        slots, num_tokens = np.array(self._slots, np.int32), len(self._tokens)
        query_starts = self._iota[: len(lens) + 1]
        token_slots, positions, seq_lens = slots, starts, starts + lens
        if num_tokens > len(lens):
            query_starts = np.zeros(len(lens) + 1, np.int32)
            np.cumsum(lens, out=query_starts[1:])
            token_slots = np.repeat(slots, lens)
            positions = self._iota[:num_tokens] + np.repeat(starts - query_starts[:-1], lens)
        logit_rows = query_starts[1:][self._guessing] - 1
        batch = StepBatch(
            token_ids=np.array(self._tokens, np.int32),
            positions=positions,
            query_starts=query_starts,
            seq_lens=seq_lens,
            table_rows=slots,
            groups=self._groups(positions, token_slots),
            logit_rows=logit_rows,
            sampling=self._sampling(slots[self._guessing], positions[logit_rows] + 1),
        )
        if self._drafter.features is not None:
            before = np.maximum(positions - 1, 0)
            group_id = self._drafter.group_ids.start
            known = self._slot_mapping(group_id, before, token_slots)
            features = self._drafter.features.at(known, positions > 0)
            self._drafter.executable.set_input(FEATURES, features)
            self._drafter.executable.set_input(HIDDEN, self._zero_hidden[:num_tokens])
            self._features_are_zero = False
        return self._guess(batch, slots[self._guessing])

    def follow(self, kept: Sequence[int]) -> tuple[list[int], list[float]]:
        """A pass for the guesses after those of the last one, of the `kept` among these: the next
        guesses and their confidences, as `run` gives them.
        """
        guesses = self._guesses
        if len(kept) < len(guesses.token_ids):
            guesses = guesses.take(kept)
        num_rows = len(guesses.token_ids)
        batch = StepBatch(
            token_ids=guesses.token_ids,
            positions=guesses.positions,
            query_starts=self._iota[: num_rows + 1],
            seq_lens=guesses.positions + 1,
            table_rows=guesses.slots,
            groups=self._groups(guesses.positions, guesses.slots),
            logit_rows=self._iota[:num_rows],
            sampling=self._sampling(guesses.slots, guesses.positions + 1),
        )
        if self._drafter.features is not None:
            if not self._features_are_zero:
                # Later passes have no more rows than this one.
                self._drafter.executable.set_input(FEATURES, self._zero_features[:num_rows])
                self._features_are_zero = True
            self._drafter.executable.set_input(HIDDEN, guesses.hidden)
        return self._guess(batch, guesses.slots)

    def _guess(self, batch: StepBatch, slots: I32) -> tuple[list[int], list[float]]:
        """Run a pass and keep what it guesses."""
        drafter = self._drafter
        result = drafter.run(batch)
        chosen = result.token_ids
        chosen = (
            chosen.copy() if drafter.model.draft_ids is None else drafter.model.draft_ids[chosen]
        )
        hidden = self._zero_hidden[: len(chosen), :0]
        if drafter.features is not None:
            hidden = drafter.executable.tap(HIDDEN).copy()
        self._guesses = _Guesses(chosen, batch.sampling.positions, slots, hidden)
        return chosen.tolist(), self._confidences(batch, result).tolist()

    def _confidences(self, batch: StepBatch, result: StepResult) -> F32:
        confidences: F32 = np.exp(result.logprobs)
        if not self._is_greedy:
            is_sampled = batch.sampling.temperature > 0
            confidences[is_sampled] = LEAST_SHARED + (1 - LEAST_SHARED) * confidences[is_sampled]
        return confidences

    def _groups(self, positions: I32, token_slots: I32) -> tuple[GroupTables, ...]:
        """The target's groups are not touched: their rows go to the null block."""
        own, num_tokens = self._drafter.group_ids, len(positions)
        return tuple(
            GroupTables(
                self._slot_mapping(group_id, positions, token_slots)
                if group_id in own
                else self._no_ints[:num_tokens],
                table,
                self._no_copies,
            )
            for group_id, table in enumerate(self._blocks.tables)
        )

    def _slot_mapping(self, group_id: int, positions: I32, token_slots: I32) -> I32:
        shift = self._shift
        mapping: I32 = self._blocks.tables[group_id][token_slots, positions >> shift]
        mapping <<= shift
        mapping += positions & ((1 << shift) - 1)
        return mapping

    def _sampling(self, slots: I32, positions: I32) -> SamplingRows:
        num_rows = len(slots)
        off, ones, no_ints = (
            self._no_floats[:num_rows],
            self._ones[:num_rows],
            self._no_ints[:num_rows],
        )
        sampling = SamplingRows(
            temperature=off,
            top_k=no_ints,
            top_p=ones,
            min_p=off,
            repetition_penalty=ones,
            frequency_penalty=off,
            presence_penalty=off,
            seeds=self._no_seeds[:num_rows],
            positions=positions,
            sample_idx=no_ints,
            num_logprobs=no_ints,
            target_ids=self._unscored[:num_rows],
        )
        if not self._is_greedy:
            self._sample_like_target(sampling, slots)
        return sampling

    def _sample_like_target(self, sampling: SamplingRows, slots: I32) -> None:
        floats, ints, sampling.seeds = self._params.take(slots)
        sampling.temperature, sampling.top_p, sampling.min_p = floats[:3]
        sampling.top_k, sampling.sample_idx = ints[:2]
        if self._params.any_mask:
            sampling.mask_idx, sampling.masks = ints[3], self._params.masks


def _width(inputs: Mapping[str, Buffer], name: str) -> int:
    """Columns of an input; none where the drafter has none."""
    return inputs[name].width if name in inputs else 0
