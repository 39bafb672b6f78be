"""Which requests cannot meet their deadline any more, without asking of each at every step.

Pure: it reads no clock. Exercised by `pytest tests/unit/core/test_overload.py`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadlines:
    """Deadlines by request, each with the moment at which it is to be looked at next."""

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}
        self._checks: list[tuple[float, str]] = []

    def add(self, request_id: str, deadline_s: float) -> None:
        """It is looked at for the first time when `late` is asked next."""
        self._deadlines[request_id] = deadline_s
        heappush(self._checks, (0.0, request_id))

    def forget(self, request_id: str) -> None:
        """It has ended; unknown ids are ignored."""
        self._deadlines.pop(request_id, None)

    def late(self, now_s: float, least_s: Callable[[str], float]) -> list[str]:
        """The requests to end now, which still need `least_s` and have less.

        The others are looked at again when they would be late if nothing had happened to them.
        """
        late = []
        for request_id in self._due(now_s):
            left_s = self._deadlines[request_id] - now_s - least_s(request_id)
            if left_s > 0:
                heappush(self._checks, (now_s + left_s, request_id))
            else:
                late.append(request_id)
        return late

    def _due(self, now_s: float) -> list[str]:
        """Each once: where a client uses an id again, checks of the request that ended are left."""
        found: dict[str, None] = {}
        while self._checks and self._checks[0][0] <= now_s:
            request_id = heappop(self._checks)[1]
            if request_id in self._deadlines:
                found[request_id] = None
        return list(found)
