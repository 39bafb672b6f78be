"""Whether the head of the queue comes in, and on which terms.

It does when its tokens so far fit into blocks that are free, beside one for every running request,
and `core.forecast` expects all of them to find the blocks to grow into. Exercised by
`pytest tests/unit/core/test_scheduler.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.blocks import AdmissionQuote, BlockManager
    from hasten.core.forecast import Forecast
    from hasten.core.request import Request


class Admission:
    """Quotes what letting a request in takes, and remembers who was turned away.

    Matching a long prompt with the cache takes time, and the head of the queue may have to wait
    for many steps, so its last quote is kept until it fits or could become better. The forecast
    changes when somebody ends, and little otherwise.
    """

    def __init__(self, blocks: BlockManager, forecast: Forecast) -> None:
        self._blocks = blocks
        self._forecast = forecast
        self._blocked: AdmissionQuote | None = None
        self._next_forecast = 0

    def quote(
        self, request: Request, running: Sequence[Request], step_idx: int
    ) -> AdmissionQuote | None:
        """The terms on which `request` comes in beside `running`; None when it has to wait."""
        if self._has_to_wait_on(request, len(running), step_idx):
            return None
        quote = self._blocks.quote(request, _forkable_sibling(request, running))
        if self._blocks.fits(quote, num_spare=len(running)):
            # A hypothesis takes the place of one that ended: they were let in together.
            if request.num_inherited_tokens or self._forecast.fits(running, request, quote):
                self._blocked = None
                return quote
            self._next_forecast = step_idx + self._blocks.block_size
        self._blocked = quote
        return None

    @property
    def is_memory_short(self) -> bool:
        """Whether somebody was turned away who has not come in since."""
        return self._blocked is not None

    def note_end(self, request: Request) -> None:
        """A running request has ended and given its blocks back."""
        self._forecast.note_end(request)
        self._next_forecast = 0

    def note_displacement(self) -> None:
        """A running request has given its blocks back so that the head of the queue comes in."""
        self._next_forecast = 0

    def _has_to_wait_on(self, request: Request, num_running: int, step_idx: int) -> bool:
        """Whether it was turned away before and nothing has changed that."""
        blocked = self._blocked
        if blocked is None or blocked.request_id != request.request_id:
            return False
        may_fit = step_idx >= self._next_forecast and self._blocks.fits(blocked, num_running)
        return not may_fit and not self._blocks.is_stale(blocked)


def _forkable_sibling(request: Request, running: Sequence[Request]) -> Request | None:
    """A request of the same group that has computed what the two share.

    The last to come, for its attention windows have moved on least.
    """
    if not request.has_siblings:
        return None
    position = request.fork_position
    shared = request.token_ids[:position]
    for other in reversed(running):
        if (
            other.group_id == request.group_id
            and other.num_computed_tokens >= position
            and other.token_ids[:position] == shared
        ):
            return other
    return None
