"""What a server does that has more to do than it can: it says so, at once and to the right one.

- The queue is bounded, by `max_len` requests and by `max_wait_s` of predicted wait. When it is
  full, the request that the policy puts last has to go, which need not be the one that came last:
  the longest queue of a client, or the least urgent request, makes room for others.
- Whoever was let into the queue and waits longer than `max_wait_s` all the same has to go then: an
  answer that comes too late is worth less to its client than to know.
- A deadline that is not expected to be met is refused when the request arrives; one that cannot be
  met any more ends its request (`core.deadlines`).

A request that has begun is never refused. Exercised by `pytest tests/unit/core/test_overload.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.core.request import Request
    from hasten.core.scheduler import Scheduler
    from hasten.core.wait import WaitForecast

MIN_RETRY_S, MAX_RETRY_S = 1.0, 300.0
WAIT_SHARE = 0.95
"""Of the longest wait, what may pass here: a connection and the way back take time too."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """`max_wait_s` None: any wait is accepted."""

    max_len: int
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A waiting request that has to go, and what its client is told."""

    request: Request
    message: str
    retry_after_s: float


class Overload:
    """Decides, for one scheduler, who of the waiting is turned away."""

    def __init__(self, scheduler: Scheduler, limits: QueueLimits, forecast: WaitForecast) -> None:
        self.forecast = forecast
        self.max_wait_s = None if limits.max_wait_s is None else WAIT_SHARE * limits.max_wait_s
        self._scheduler = scheduler
        self._limits = limits
        self._computed_s: dict[str, float] = {}

    def predicted_wait_s(self) -> float:
        """To the first token, for a short prompt that lines up last."""
        return self.forecast.seconds(list(self._scheduler.queue), 1)

    def turned_away(
        self, newcomer: Request, deadline_s: float | None = None, waited_s: float = 0.0
    ) -> TurnedAway | None:
        """Who has to go now that `newcomer` waits too: it, another, or nobody.

        It has `deadline_s` left, and has waited for `waited_s` elsewhere.
        """
        if self._is_too_long():
            last = next(filter(_has_not_begun, self._scheduler.queue.last_first()), None)
            if last is not None:
                return self._full(last)
        if deadline_s is None and self.max_wait_s is None:
            return None
        return self._too_late(newcomer, deadline_s, waited_s)

    def note_begun(self, group_id: str, waited_s: float) -> None:
        """A request was let in; of the samples of one, the first tells."""
        computed_s = self._computed_s.pop(group_id, None)
        if computed_s is not None:
            self.forecast.pace.learn(computed_s, waited_s)

    def forget(self, group_id: str) -> None:
        """It has ended; unknown ids are ignored."""
        self._computed_s.pop(group_id, None)

    def _is_too_long(self) -> bool:
        queue = self._scheduler.queue
        return len(queue) > self._limits.max_len and (
            sum(map(_has_not_begun, queue)) > self._limits.max_len
        )

    def _full(self, last: Request) -> TurnedAway:
        message = f"the queue is full: {self._limits.max_len} requests wait (--max-queue-len)"
        return TurnedAway(last, message, _retry_after(self.predicted_wait_s()))

    def _too_late(
        self, newcomer: Request, deadline_s: float | None, waited_s: float
    ) -> TurnedAway | None:
        queue = self._scheduler.queue
        ahead = list(takewhile(lambda request: request is not newcomer, queue))
        computed_s = self.forecast.steps_s(ahead, newcomer.num_tokens)
        wait_s = self.forecast.after(computed_s, newcomer.num_tokens)
        limit_s = self.max_wait_s
        told_s = self._limits.max_wait_s
        expected = f"the first token is expected after {wait_s:.1f} s"
        if deadline_s is not None and wait_s > deadline_s:
            message = f"{expected}, and deadline_ms allows {deadline_s:.1f} s for all"
        elif limit_s is not None and wait_s + waited_s > limit_s:
            message = f"{expected}, and at most {told_s:.1f} s are accepted (--max-queue-wait-ms)"
        else:
            self._computed_s[newcomer.group_id] = computed_s
            return None
        return TurnedAway(newcomer, message, _retry_after(wait_s - (limit_s or 0.0)))


def _has_not_begun(request: Request) -> bool:
    """Whether nothing has been computed for it: preempted requests, and later samples, have."""
    return request.num_preemptions == 0 and request.sample_idx == 0


def _retry_after(seconds: float) -> float:
    return min(max(math.ceil(seconds), MIN_RETRY_S), MAX_RETRY_S)
