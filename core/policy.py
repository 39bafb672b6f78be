"""Who comes first and how prompts share a step: the objects that steer the scheduler.

Terms: a request's *order* ranks the waiting; its *level* is its class in preemption, and only
requests of the least urgent level present lose their blocks. Both are asked of the policy and may
depend on anything it knows (deadlines, shares per key); the scheduler depends on none of it.

Not here: fairness between clients (`core.fairness`), which request loses its blocks
(`core.preemption`), when (`core.scheduler`).
Exercised by `pytest tests/unit/core/test_policy.py`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.latency import StepShape
    from hasten.core.request import Request, RequestId

OrderKey = tuple[Any, ...]
"""Numbers, and a request id at last: comparable within one policy."""


class QueuePolicy(Protocol):
    """Order of the waiting, and levels for preemption."""

    def order(self, request: Request) -> tuple[float, ...]:
        """Asked whenever the request starts to wait; the smallest goes first.

        Requests of equal order go by arrival. All tuples of one policy have the same length.
        """
        ...

    def level(self, request: Request) -> int:
        """Class in preemption: the lowest number is the most urgent. Constant for a request."""
        ...

    def left(self, request: Request) -> None:
        """It waits no longer: it was let in, or has ended."""
        ...

    def max_chunk(self, num_tokens_left: int) -> int:
        """The most that one prompt takes of what a step has left while another could use it."""
        ...


@dataclass(frozen=True, slots=True)
class HalfOfWhatIsLeft:
    """How prompts share the tokens of a step: each takes half of what is left, or `min_chunk`.

    A prompt of any length then delays a short one behind it by a step or two instead of by its
    own length; prompts below `min_chunk` are not cut on account of others, but where a step's
    time is short (`StepBudget`).
    """

    min_chunk: int = 64

    def max_chunk(self, num_tokens_left: int) -> int:
        return max(self.min_chunk, num_tokens_left // 2)

    def left(self, request: Request) -> None:
        """Policies whose order does not depend on who else waits need not know."""


class FirstComeFirstServed(HalfOfWhatIsLeft):
    """Arrival alone decides."""

    def order(self, request: Request) -> tuple[float, ...]:  # noqa: ARG002 (the protocol's)
        return ()

    def level(self, request: Request) -> int:  # noqa: ARG002 (the protocol's)
        return 0


class PriorityFirst(HalfOfWhatIsLeft):
    """`Request.priority` decides, the lowest number first; arrival among equals."""

    def order(self, request: Request) -> tuple[float, ...]:
        return (request.priority,)

    def level(self, request: Request) -> int:
        return request.priority


class StepBudget(Protocol):
    """Bounds the prefill of a step (`latency.ItlBudget`)."""

    def max_chunk(self, step: StepShape, start: int, wanted: int, share: float = 1.0) -> int:
        """How many of a prompt's next `wanted` tokens, from `start`, fit beside `step`.

        They take at most `share` of the time that is left.
        """
        ...

    def has_room(self, step: StepShape, start: int, wanted: int) -> bool:
        """Whether the least that `max_chunk` gives fits beside `step`."""
        ...


class FirstTokens(Protocol):
    """What first tokens are worth (`latency.FirstTokenBudget`)."""

    def beside(self, step: StepShape) -> StepBudget:
        """How prompts that do not end in this step are cut for those in `step`, which do."""
        ...


class WaitingQueue:
    """The waiting requests in the policy's order."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._entries: list[tuple[OrderKey, Request]] = []
        self._keys: dict[RequestId, OrderKey] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._entries)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._keys

    def head(self) -> Request | None:
        """The next request, left in its place; None when nobody waits."""
        return self._entries[0][1] if self._entries else None

    def last_first(self) -> Iterator[Request]:
        """All of them, from the end of the queue."""
        return (request for _, request in reversed(self._entries))

    def push(self, request: Request) -> None:
        """Line up where the policy says. Raises ValueError when it waits already."""
        if request in self:
            raise ValueError(f"request {request.request_id} waits already")
        order = self._policy.order(request)
        key: OrderKey = (*order, request.arrival, request.sample_idx, request.request_id)
        self._keys[request.request_id] = key
        insort(self._entries, (key, request), key=itemgetter(0))

    def remove(self, request: Request) -> None:
        """Leave the queue. Raises KeyError when it does not wait."""
        key = self._keys.pop(request.request_id)
        del self._entries[bisect_left(self._entries, key, key=itemgetter(0))]
        self._policy.left(request)
