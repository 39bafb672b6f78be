"""The rows of drafting passes: added request by request, then run together as a chain; a chain that
ended for some requests goes on for the others.

A pass samples as the request itself would, with the same noise, so that drafter and target choose
alike wherever they agree; penalties and other adjustments by history are left out, which costs
acceptance only. A head that knows fewer tokens than the target guesses greedily: its noise would be
that of other tokens. Exercised by `pytest tests/cpu/spec/test_drafters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from hasten.core.latency import EMPTY_STEP
from hasten.core.models.eagle import HIDDEN
from hasten.core.models.weights import EMBED
from hasten.core.sampling_state import SlotParameters
from hasten.kernels.chains import DraftStep
from hasten.kernels.step import SamplingRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.drafter import Drafter
    from hasten.core.latency import StepShape
    from hasten.core.request import Request
    from hasten.kernels.step import F32, I32

Level: TypeAlias = "tuple[list[int], list[float]]"
"""What a pass guesses: tokens, and the confidence in each."""


@dataclass(slots=True)
class _Guess:
    """The last that was guessed for a request, and where it would lie."""

    slot: int
    position: int
    token_id: int = -1


class DraftRows:
    """The rows of one pass, and the guesses of the last."""

    def __init__(self, drafter: Drafter, blocks: BlockManager) -> None:
        self._drafter = drafter
        self._blocks = blocks
        num_slots = len(blocks.tables[0])
        self._params = SlotParameters(num_slots, drafter.model.weights[EMBED].shape[0])
        self._owners: list[Request | None] = [None] * num_slots
        self._is_greedy = drafter.model.draft_ids is not None
        self.begin()

    @property
    def is_empty(self) -> bool:
        return not self._tokens

    def begin(self) -> None:
        """Forget all rows and guesses."""
        self._tokens: list[int] = []
        self._starts: list[int] = []
        self._ends = [0]  # of each request's rows, and where the first begins
        self._slots: list[int] = []
        self._guessing: list[int] = []  # requests of this pass, by their order
        self._guesses: list[_Guess] = []
        self._shape: StepShape = EMPTY_STEP

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
            self._guesses.append(_Guess(slot, end))
        self._add(request.token_ids[start:end], start, slot, wants_guess=wants_guess)

    def run(self, num_passes: int, least_survival: float) -> list[Level]:
        """The guesses for the requests that want one, in their order, of one pass or of more.

        There are as many passes as wanted, or fewer where a survival falls below the least, or
        where the backend runs one at a time: then `follow` goes on.
        """
        survivals = np.ones(len(self._guesses), np.float32)
        return self._run(None, num_passes, least_survival, survivals)

    def follow(
        self,
        kept: Sequence[int],
        survivals: Sequence[float],
        num_passes: int,
        least_survival: float,
    ) -> list[Level]:
        """Passes for the guesses after the last ones, of the `kept` among these, as `run`."""
        guesses = [self._guesses[idx] for idx in kept]
        hidden = None
        if self._drafter.features is not None:
            hidden = self._drafter.executable.tap(HIDDEN)[kept]
        self.begin()
        for guess in guesses:
            self._add([guess.token_id], guess.position, guess.slot, wants_guess=True)
            guess.position += 1
        self._guesses = guesses
        return self._run(hidden, num_passes, least_survival, np.array(survivals, np.float32))

    def _add(self, token_ids: Sequence[int], start: int, slot: int, *, wants_guess: bool) -> None:
        if wants_guess:
            self._guessing.append(len(self._starts))
        self._tokens += token_ids
        self._starts.append(start)
        self._ends.append(len(self._tokens))
        self._slots.append(slot)
        self._shape = self._shape.with_chunk(start, len(token_ids), int(wants_guess))

    def _run(
        self, hidden: F32 | None, num_passes: int, least_survival: float, survivals: F32
    ) -> list[Level]:
        """Run passes and keep what the last one guesses."""
        step = DraftStep(
            token_ids=np.array(self._tokens, np.int32),
            query_starts=np.array(self._ends, np.int32),
            starts=np.array(self._starts, np.int32),
            table_rows=np.array(self._slots, np.int32),
            guessing=np.array(self._guessing, np.int32),
            tables=self._blocks.tables,
            sampling=None if self._is_greedy else self._sampling(),
            hidden=hidden,
        )
        token_ids, confidences = self._drafter.run_chain(
            step, self._shape, num_passes, least_survival, survivals
        )
        levels = list(zip(token_ids.tolist(), confidences.tolist(), strict=True))
        for guess, token_id in zip(self._guesses, levels[-1][0], strict=True):
            guess.token_id = token_id
            guess.position += len(levels) - 1
        return levels

    def _sampling(self) -> SamplingRows:
        """As the target would sample, without what its history adjusts."""
        slots = np.array([guess.slot for guess in self._guesses], np.int32)
        num_rows = len(slots)
        floats, ints, seeds = self._params.take(slots)
        off, ones = np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32)
        zeros = np.zeros(num_rows, np.int32)
        sampling = SamplingRows(
            temperature=floats[0],
            top_k=ints[0],
            top_p=floats[1],
            min_p=floats[2],
            repetition_penalty=ones,
            frequency_penalty=off,
            presence_penalty=off,
            seeds=seeds,
            positions=zeros,
            sample_idx=ints[1],
            num_logprobs=zeros,
            target_ids=np.full(num_rows, -1, np.int32),
        )
        if self._params.any_mask:
            sampling.mask_idx, sampling.masks = ints[3], self._params.masks
        return sampling
