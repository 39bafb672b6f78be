"""Fairness between clients: deficit round robin over those who wait.

Each client has a queue of its own. They take turns, and at each turn a client may have requests
let in whose tokens add up to a quantum; what it does not use it keeps for its next turn, as long
as it has somebody waiting. So a client that sends a thousand requests delays the one request of
another by one or two requests, and long requests count for more than short ones.

Source: M. Shreedhar and G. Varghese, Efficient Fair Queuing Using Deficit Round Robin, 1995. There
the turns are walked; here the number of the turn that lets a request in is worked out when it
lines up, ceil(tokens this client has asked for so far / quantum), which gives the same order.

    client a  [40][40][40]     turns of 16 tokens    1   2   3   4   5   6   7   8
    client b  [20]                                           a1      a2          a3
                                                         b1

Pure bookkeeping. Exercised by `pytest tests/unit/core/test_fairness.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hasten.core.policy import HalfOfWhatIsLeft

if TYPE_CHECKING:
    from hasten.core.request import Request, RequestId

QUANTUM = 16
"""Tokens per turn: few, for turns cost nothing here, and shares get as even as requests allow."""
OUTPUT_ALLOWANCE = 512
"""An output counts with its `max_tokens`, but no more than this: few get as long as they may."""


def cost_of(request: Request) -> int:
    """Tokens that a request counts for; samples after the first share the prompt."""
    num_prompt_tokens = 0 if request.sample_idx else request.num_prompt_tokens
    return num_prompt_tokens + min(request.params.max_tokens, OUTPUT_ALLOWANCE)


@dataclass(slots=True)
class _Client:
    """One who has requests waiting: its place among the clients, and its requests' turns."""

    place: int
    first_turn: int
    num_asked: int = 0
    turns: dict[RequestId, int] = field(default_factory=dict)


class FairBetweenClients:
    """A `QueuePolicy`: clients take turns; within one client, arrival decides.

    Who has begun comes back before all who have never run: its turn was taken already.
    """

    def __init__(self, quantum: int = QUANTUM) -> None:
        self._quantum = quantum
        self._sharing = HalfOfWhatIsLeft()
        self._clients: dict[str, _Client] = {}
        self._num_places = 0

    def order(self, request: Request) -> tuple[float, ...]:
        if request.has_begun:
            return (-1, 0)
        client = self._clients.get(request.client)
        if client is None:
            client = self._join(request.client)
        client.num_asked += cost_of(request)
        turn = client.first_turn + (client.num_asked - 1) // self._quantum
        client.turns[request.request_id] = turn
        return (turn, client.place)

    def level(self, request: Request) -> int:  # noqa: ARG002 (the protocol's)
        return 0

    def left(self, request: Request) -> None:
        client = self._clients.get(request.client)
        if client is None or request.request_id not in client.turns:
            return
        is_last = request.request_id == next(reversed(client.turns))
        del client.turns[request.request_id]
        if not client.turns:
            del self._clients[request.client]
        elif is_last:
            client.num_asked -= cost_of(request)

    def max_chunk(self, num_tokens_left: int) -> int:
        return self._sharing.max_chunk(num_tokens_left)

    def _join(self, name: str) -> _Client:
        """Who starts to wait lines up behind all who wait already, as in a round robin's list."""
        now = min((next(iter(c.turns.values())) for c in self._clients.values()), default=-1)
        self._num_places += 1
        client = self._clients[name] = _Client(self._num_places, now + 1)
        return client
