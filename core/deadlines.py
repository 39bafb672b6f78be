"""Which requests have to be looked at because their deadline comes near.

Pure: it reads no clock. Exercised by `pytest tests/unit/core/test_overload.py`.
"""

from __future__ import annotations

from heapq import heappop, heappush


class Deadlines:
    """Deadlines by request, each with the moment at which it is to be looked at next."""

    def __init__(self) -> None:
        self._deadlines: dict[str, float] = {}
        self._checks: list[tuple[float, str]] = []

    def __getitem__(self, request_id: str) -> float:
        return self._deadlines[request_id]

    def add(self, request_id: str, deadline_s: float) -> None:
        """It is looked at at once: `due` names it first."""
        self._deadlines[request_id] = deadline_s
        heappush(self._checks, (0.0, request_id))

    def look_again(self, request_id: str, at_s: float) -> None:
        heappush(self._checks, (at_s, request_id))

    def forget(self, request_id: str) -> None:
        """It has ended; unknown ids are ignored."""
        self._deadlines.pop(request_id, None)

    def due(self, now_s: float) -> list[str]:
        """Those to be looked at now; each is forgotten or looked at again, as the caller says.

        Each once: where a client uses an id again, checks of the request that ended are left.
        """
        found: dict[str, None] = {}
        while self._checks and self._checks[0][0] <= now_s:
            request_id = heappop(self._checks)[1]
            if request_id in self._deadlines:
                found[request_id] = None
        return list(found)
