"""Drafting with a model: a smaller one of the same vocabulary, or an EAGLE head on the target.

Per step: one pass over what each request is behind by, the newest token included, which gives the
first guesses; then a pass of one token per request for each further level. Requests far behind
catch up in chunks over several steps, and draft when they are there.

    tokens of a request     [ ... computed by the drafter ... | behind | newest ]  d1  d2  d3
    first pass                                                [--------------- ]-> d1
    passes 2, 3                                                                 [d1]-> d2 [d2]-> d3

K and V of drafted tokens go to the slots that the target's will have; slots are taken only where
that costs nobody a block (`BlockManager.extend_for_drafts`), else the draft is shorter. What was
drafted and came true is computed already for a draft model; an EAGLE head computes it again, from
the target's features.

Blocks that others share may hold what this drafter computed, or not: it notes for every block that
it fills which tokens these are, by the name that the prefix cache gives them. So after a prefix
hit, a fork or a preemption it goes on from the first block that is not so noted, and computes
into shared blocks what already belongs there.

Exercised by `pytest tests/cpu/spec/test_drafters.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from hasten.core.drafter import MAX_PASS_TOKENS
from hasten.core.latency import EMPTY_STEP, ItlBudget
from hasten.spec.depth import Drafting
from hasten.spec.draft_batch import DraftRows
from hasten.spec.proposer import NO_DRAFT, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.drafter import Drafter
    from hasten.core.prefix_hash import BlockHash
    from hasten.core.request import Request, RequestId
    from hasten.spec.draft_batch import Level

FIRST_OVERHEAD_S, OVERHEAD_FADE = 100e-6, 0.05
"""What a call takes beside the model's own time: at first, and how fast that is learnt."""
FEW_TOKENS = 16
"""A pass of so many costs hardly more than one of a token for each request."""
AMORTISED_SHARE, AMORTISED_TOKENS = 0.5, 128
"""A request's catching up is counted over so much of what it may still say, at most over so many
tokens: that many drafts profit from it."""


@dataclass(slots=True)
class _Progress:
    """How many of a request's tokens the drafter has computed, and what it drafted after them.

    Blocks up to `num_noted` tokens are noted as filled. `num_preemptions` is the request's when
    this began: a preemption takes the blocks.
    """

    num_computed: int
    num_noted: int
    num_preemptions: int
    drafted: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """One request in one call, and its draft so far."""

    idx: int
    request: Request
    depth: int
    num_tokens: int
    progress: _Progress
    token_ids: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    survival: float = 1.0

    @property
    def num_behind(self) -> int:
        """Tokens that a pass has to compute for a guess."""
        return self.num_tokens - self.progress.num_computed


class DrafterProposer:
    """One drafter for all requests of an engine."""

    def __init__(
        self, drafter: Drafter, blocks: BlockManager, max_pass_s: float = math.inf
    ) -> None:
        """Catching up is cut to what a pass of `max_pass_s` computes, as predicted."""
        self._drafter = drafter
        self._budget = ItlBudget(drafter.step_times, max_pass_s, blocks.block_size)
        self._start_s = FIRST_OVERHEAD_S
        self._between_s = 0.0  # passes of a call; were it thought dear, there would be one only
        self._blocks = blocks
        self._rows = DraftRows(drafter, blocks)
        self._is_head = drafter.features is not None
        self._progress: dict[RequestId, _Progress] = {}
        self._contents: dict[int, BlockHash] = {}  # of blocks of the drafter's first group

    # Costs ------------------------------------------------------------------------------------

    def drafting(self, num_tokens: Sequence[int]) -> Drafting:
        """What drafting takes for requests of these lengths."""
        shape = EMPTY_STEP
        for length in num_tokens:
            shape = shape.with_chunk(length - 1, 1, 1)
        pass_s = self._drafter.step_times.step_time(shape) + self._between_s
        return Drafting(max(self._start_s - self._between_s, 0.0), pass_s)

    def catch_up_s(self, request: Request) -> float:
        """Seconds that catching up takes beyond a pass, as a share of the drafts to come of it."""
        behind = len(request.token_ids) - self._of(request).num_computed
        if behind <= FEW_TOKENS:
            return 0.0
        shape = EMPTY_STEP.with_chunk(0, min(behind, MAX_PASS_TOKENS))
        chunks = -(-behind // MAX_PASS_TOKENS)
        num_left = request.max_total_tokens - len(request.token_ids)
        profiting = min(max(AMORTISED_SHARE * num_left, 1.0), AMORTISED_TOKENS)
        return chunks * self._drafter.step_times.step_time(shape) / profiting

    def limit(self, request: Request) -> int:
        """The deepest draft that the drafter's positions allow."""
        return max(self._drafter.model.max_len - len(request.token_ids), 0)

    # Drafting ---------------------------------------------------------------------------------

    def propose(
        self, requests: Sequence[Request], depths: Sequence[int], least_survival: float = 0.0
    ) -> list[Draft]:
        """Drafts end where their survival, as the drafter itself sees it, is below the least."""
        begin_s, self._drafter.seconds = perf_counter(), 0.0
        drafts = [NO_DRAFT] * len(requests)
        runs = active = self._catch_up(self._runs(requests, depths))
        levels = [] if self._rows.is_empty else self._rows.run(_num_passes(active), least_survival)
        start_s = perf_counter() - begin_s - self._drafter.seconds
        num_passes = len(levels)
        while levels:
            self._take(active, levels)
            kept = [
                idx
                for idx, run in enumerate(active)
                if run.depth > len(run.token_ids) and run.survival >= least_survival
            ]
            if not kept:
                break
            active = [active[idx] for idx in kept]
            survivals = [run.survival for run in active]
            levels = self._rows.follow(kept, survivals, _num_passes(active), least_survival)
            num_passes += len(levels)
        for run in runs:
            drafts[run.idx] = Draft(run.token_ids, run.confidences)
            run.progress.drafted = run.token_ids
        self._start_s += OVERHEAD_FADE * (start_s - self._start_s)
        if num_passes > 1:
            rest_s = perf_counter() - begin_s - self._drafter.seconds - start_s
            between_s = rest_s / (num_passes - 1)
            self._between_s += OVERHEAD_FADE * (between_s - self._between_s)
        return drafts

    def forget(self, request_id: RequestId) -> None:
        self._progress.pop(request_id, None)

    def _runs(self, requests: Sequence[Request], depths: Sequence[int]) -> list[_Run]:
        """Who takes part, as deep as slots and positions allow; most behind, last served."""
        runs = []
        for idx, (request, depth) in enumerate(zip(requests, depths, strict=True)):
            depth = min(depth, self.limit(request))  # noqa: PLW2901  the deepest possible
            if depth > 0 and self._blocks.extend(request.request_id, len(request.token_ids)):
                progress = self._of(request)
                runs.append(_Run(idx, request, depth, len(request.token_ids), progress))
        for run in runs:
            end = run.num_tokens + run.depth - 1
            run.depth = self._blocks.extend_for_drafts(run.request.request_id, end)
            run.depth -= run.num_tokens - 1
        if len(runs) > 1:
            runs.sort(key=lambda run: run.num_behind)
        return runs

    def _catch_up(self, runs: Sequence[_Run]) -> list[_Run]:
        """Lay out what requests are behind by; returns those that will be there, for a guess."""
        num_left = sum(run.num_behind for run in runs)
        if num_left > FEW_TOKENS:
            num_left = max(self._budget.max_chunk(EMPTY_STEP, 0, MAX_PASS_TOKENS), len(runs))
        there: list[_Run] = []
        self._rows.begin()
        for run in runs:
            progress = run.progress
            start = progress.num_computed
            num_tokens = min(run.num_tokens - start, num_left)
            if num_tokens <= 0:
                break
            end = start + num_tokens
            self._rows.add_tokens(run.request, start, end, wants_guess=end == run.num_tokens)
            num_left -= num_tokens
            if end == run.num_tokens:
                there.append(run)
            progress.num_computed = end
            self._note(run.request, progress)
        return there

    @staticmethod
    def _take(runs: Sequence[_Run], levels: Sequence[Level]) -> None:
        """More guesses for each of these."""
        for token_ids, confidences in levels:
            for run, token_id, confidence in zip(runs, token_ids, confidences, strict=True):
                run.token_ids.append(token_id)
                run.confidences.append(confidence)
                run.survival *= confidence

    # What is computed already -----------------------------------------------------------------

    def _of(self, request: Request) -> _Progress:
        progress = self._progress.get(request.request_id)
        if progress is None or progress.num_preemptions != request.num_preemptions:
            found = self._num_found(request)
            progress = _Progress(found, found, request.num_preemptions)
            self._progress[request.request_id] = progress
        elif progress.drafted:
            progress.num_computed += self._num_come_true(request, progress)
            progress.drafted = []
        return progress

    def _num_come_true(self, request: Request, progress: _Progress) -> int:
        """Drafted tokens that are the request's now and were computed: all but the last drafted."""
        if self._is_head:
            return 0
        num_true = 0
        came = request.token_ids[progress.num_computed :]
        for drafted, token_id in zip(progress.drafted[:-1], came, strict=False):
            if drafted != token_id:
                break
            num_true += 1
        # The newest token is computed anew, for its guess.
        return max(min(num_true, len(came) - 1), 0)

    def _num_found(self, request: Request) -> int:
        """Tokens in leading blocks that this drafter has filled, the newest token never."""
        count = 0
        size = self._blocks.block_size
        table = self._rows.blocks_of(request)
        for block, name in zip(table.tolist(), request.block_hashes, strict=False):
            if self._contents.get(block) != name:
                break
            count += size
        return min(count, len(request.token_ids) - 1)

    def _note(self, request: Request, progress: _Progress) -> None:
        """Remember what the blocks hold that have been written since the last time.

        Blocks get their names once the target has computed them, the last one a step later.
        """
        size, names = self._blocks.block_size, request.block_hashes
        table = self._rows.blocks_of(request)
        num_filled = min(progress.num_computed // size, len(names))
        for idx in range(progress.num_noted // size, -(-progress.num_computed // size)):
            block = int(table[idx])
            if idx < num_filled:
                self._contents[block] = names[idx]
            else:
                self._contents.pop(block, None)
        progress.num_noted = num_filled * size


def _num_passes(runs: Sequence[_Run]) -> int:
    """As many as all of these want."""
    return min((run.depth - len(run.token_ids) for run in runs), default=1)
