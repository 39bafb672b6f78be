"""The batches of drafting passes: rows are added request by request, then run together; what was
guessed can be followed at once by a pass for the guesses after those.

A pass samples as the request itself would, with the same noise, so that drafter and target choose
alike wherever they agree; penalties and other adjustments by history are left out, which costs
acceptance only. A head that knows fewer tokens than the target guesses greedily: its noise would be
that of other tokens. Exercised by `pytest tests/cpu/spec/test_drafters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

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
    from hasten.kernels.step import F32, I32

Level: TypeAlias = "tuple[list[int], list[float]]"
"""What a pass guesses: tokens, and the confidence in each."""


@dataclass(slots=True)
class _Guesses:
    """What the last pass guessed: the tokens, where they would lie, and whose they are."""

    token_ids: I32
    positions: I32
    slots: I32


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
        self._guesses = _Guesses(no_tokens, no_tokens, no_tokens)
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

    def run(self, num_passes: int, least_survival: float) -> list[Level]:
        """The guesses for the requests that want one, in their order, of one pass or of more.

        There are as many passes as wanted, or fewer where a survival falls below the least, or
        where the backend runs one at a time: then `follow` goes on.
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
        survivals = np.ones(len(self._guessing), np.float32)
        return self._guess(batch, slots[self._guessing], num_passes, least_survival, survivals)

    def follow(
        self, kept: Sequence[int], survivals: Sequence[float], num_passes: int, least: float
    ) -> list[Level]:
        """Passes for the guesses after the last ones, of the `kept` among these, as `run`."""
        guesses = self._guesses
        token_ids, positions = guesses.token_ids[kept], guesses.positions[kept]
        slots, num_rows = guesses.slots[kept], len(kept)
        batch = StepBatch(
            token_ids=token_ids,
            positions=positions,
            query_starts=self._iota[: num_rows + 1],
            seq_lens=positions + 1,
            table_rows=slots,
            groups=self._groups(positions, slots),
            logit_rows=self._iota[:num_rows],
            sampling=self._sampling(slots, positions + 1),
        )
        if self._drafter.features is not None:
            if not self._features_are_zero:
                # Later passes have no more rows than this one.
                self._drafter.executable.set_input(FEATURES, self._zero_features[:num_rows])
                self._features_are_zero = True
            hidden = self._drafter.executable.tap(HIDDEN)[kept]
            self._drafter.executable.set_input(HIDDEN, hidden)
        return self._guess(batch, slots, num_passes, least, np.array(survivals, np.float32))

    def _guess(
        self,
        batch: StepBatch,
        slots: I32,
        num_passes: int,
        least_survival: float,
        survivals: F32,
    ) -> list[Level]:
        """Run passes and keep what the last one guesses."""
        token_ids, confidences = self._drafter.run_chain(
            batch, num_passes, least_survival, survivals
        )
        positions = batch.sampling.positions + (len(token_ids) - 1)
        self._guesses = _Guesses(token_ids[-1].copy(), positions, slots)
        return list(zip(token_ids.tolist(), confidences.tolist(), strict=True))

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
