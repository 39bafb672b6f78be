"""How full memory will get: whether all who run, and one more, will find the blocks to grow into.

How long an output may get is known when its request is let in, but not how long it will get, often
many times less. `OutputLengths` learns that; with it, t tokens from now

    p(t)     is the probability that a request still runs: 0 past its `max_tokens`
    hold(t)  are the blocks of its own that it holds then

and all together hold about sum(p hold), give or take the standard deviation, but never more than
sum(hold). The fullest moment decides. While little is known outputs are expected to end after some
thousands of tokens: short allowances count in full, and long ones do not keep a fresh server from
taking requests.

Pure bookkeeping. Exercised by `pytest tests/unit/core/test_forecast.py`; what it costs and what it
spares is in `docs/log.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.blocks import AdmissionQuote, BlockManager
    from hasten.core.request import Request

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

AGE_EDGES: I64 = np.concatenate([[0], 16 << np.arange(17)])
"""Ages of outputs, in tokens, from 0 to a million; within a bracket they end at an even rate."""
BRACKETS: I64 = np.diff(AGE_EDGES)

PRIOR_OUTPUTS = 4.0
PRIOR_MEAN_LEN = 4096.0
"""Before there is evidence: as if so many outputs had been seen, ending at this even rate."""
MEMORY = 127 / 128
"""An output counts less by this factor for each that ends after it."""


class OutputLengths:
    """A life table: at each age of an output, how many of those that got there ended.

    Outputs that `max_tokens` cut, and those that still run, tell how far they got, not where they
    would have ended. Source: the piecewise exponential estimate of survival from censored lives
    (Kaplan and Meier 1958; Friedman 1982).
    """

    def __init__(self) -> None:
        self._num_ended = np.zeros(len(BRACKETS))
        self._num_tokens = np.zeros(len(BRACKETS))

    def note_end(self, num_tokens: int, *, was_cut: bool) -> None:
        """An output has ended after `num_tokens`, or was cut there by its `max_tokens`."""
        self._num_ended *= MEMORY
        self._num_tokens *= MEMORY
        self._num_tokens += _by_bracket(np.array([num_tokens]))
        if not was_cut:
            self._num_ended[AGE_EDGES.searchsorted(num_tokens, side="right") - 1] += 1

    def survival(self, ages: I64, times: I64) -> F64:
        """[times, ages]: the probability that an output goes on for t tokens from its age.

        `ages` are those of all outputs that run now, which is evidence too.
        """
        lived = self._num_tokens + _by_bracket(ages) + PRIOR_OUTPUTS * BRACKETS
        ended = self._num_ended + PRIOR_OUTPUTS * BRACKETS / PRIOR_MEAN_LEN
        hazard = np.concatenate([[0.0], np.cumsum(ended / lived * BRACKETS)])
        before = np.interp(ages, AGE_EDGES, hazard)
        after = np.interp(ages + times[:, None], AGE_EDGES, hazard)
        chance: F64 = np.exp(before - after)
        return chance

    def expected_more(self, ages: I64, to_go: I64) -> F64:
        """How many tokens outputs of these ages still get, if they may get `to_go`."""
        if not len(ages):
            return np.zeros(0)
        num_edges = AGE_EDGES.searchsorted(to_go.max())
        times = np.append(AGE_EDGES[:num_edges], to_go.max())
        chance = self.survival(ages, times)
        lived = (chance[1:] + chance[:-1]) / 2
        spans = np.diff(np.minimum(times[:, None], to_go), axis=0)
        more: F64 = (lived * spans).sum(axis=0)
        return more


def _by_bracket(ages: I64) -> I64:
    """How many tokens all these outputs together have spent in each bracket."""
    spent: I64 = np.clip(ages[:, None] - AGE_EDGES[:-1], 0, BRACKETS).sum(axis=0)
    return spent


@dataclass(slots=True)
class _Growing:
    """Requests and how they may grow: an entry each."""

    lens: I64
    ages: I64
    to_go: I64
    shared: I64  # blocks that others may hold too, so that its end does not free them

    @classmethod
    def of(
        cls, requests: Sequence[Request], num_shared: Sequence[int], block_size: int
    ) -> _Growing:
        # The last token is never computed, only returned.
        rows = [(r.num_tokens, r.num_output_tokens, r.max_total_tokens - 1) for r in requests]
        lens, ages, most = np.array(rows).T
        # Samples share their prompt with siblings that may have come after them.
        prompts = [r.num_prompt_tokens if r.params.n > 1 else 0 for r in requests]
        return cls(lens, ages, most - lens, np.maximum(num_shared, prompts) // block_size)


class Forecast:
    """The forecast of one scheduler's memory."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._lengths = OutputLengths()

    @property
    def lengths(self) -> OutputLengths:
        """What has been learned of how long outputs get."""
        return self._lengths

    def note_end(self, request: Request) -> None:
        """A request that held blocks has ended; one whose client hangs up ends like any other.

        What becomes of a hypothesis of a beam search says nothing of outputs.
        """
        if request.params.beam is not None:
            return
        num_tokens = request.num_output_tokens
        self._lengths.note_end(num_tokens, was_cut=num_tokens >= request.params.max_tokens)

    def fits(self, running: Sequence[Request], newcomer: Request, quote: AdmissionQuote) -> bool:
        """Whether `running`, and a newcomer on these terms, are expected to find their blocks.

        Always when all of them fit at full length; so a newcomer who is alone always does.
        """
        blocks = self._blocks
        num_shared = [blocks.num_shared_tokens(request.request_id) for request in running]
        growing = _Growing.of(
            [*running, newcomer], [*num_shared, quote.num_shared_tokens], blocks.block_size
        )
        unreserved = zip(blocks.num_unreserved, quote.num_needed, strict=True)
        spare = np.array([free - needed for free, needed in unreserved])
        held = blocks.held_at(growing.lens)
        most = blocks.held_at(growing.lens + growing.to_go) - held
        return bool(
            (most.sum(axis=-1) <= spare).all() or (self._more(growing, held) <= spare).all()
        )

    def _more(self, growing: _Growing, held: I64) -> F64:
        """[groups]: the blocks that are expected to be taken beside those `held` now."""
        lens, to_go, shared = growing.lens, growing.to_go, growing.shared
        times = np.union1d(to_go, AGE_EDGES[: AGE_EDGES.searchsorted(to_go.max())])
        chance = self._lengths.survival(growing.ages, times) * (to_go >= times[:, None])
        hold = np.maximum(self._blocks.held_at(lens + times[:, None]) - shared, 0)
        mean = (chance * hold).sum(axis=-1)
        deviation = np.sqrt((chance * (1 - chance) * hold * hold).sum(axis=-1))
        most = ((chance > 0) * hold).sum(axis=-1)
        fullest = np.minimum(mean + deviation, most).max(axis=-1)
        more: F64 = fullest - np.maximum(held - shared, 0).sum(axis=-1)
        return more
