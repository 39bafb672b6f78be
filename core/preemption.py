"""Which request gives its blocks back when memory runs out; `core.forecast` keeps that rare.

Within the least urgent level that offers one, the victim is the request that loses the fewest
computed tokens per block it really frees (blocks that others hold stay); among equals the one that
came last. Never:

- the oldest of the most urgent level, so that something always moves;
- a request more urgent than the one in need;
- one that has got no token since it was preempted last, so that nobody is preempted in vain; nor
  one of the needy's own level that is still catching up, for its blocks are reserved;
- one that frees no block.

Who is held (`Request.is_held`) has given what it computed, and is neither oldest nor spared.

When a more urgent request waits, those of less urgent levels make room for it (`displaced_by`), by
the same rules and only if they can make enough.

Exercised by `pytest tests/unit/core/test_scheduler.py tests/unit/core/test_displacement.py`.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.policy import QueuePolicy
    from hasten.core.request import Request


def oldest(running: Sequence[Request], policy: QueuePolicy) -> Request:
    """The request that is never preempted: of the most urgent level, the first to arrive."""
    return min(running, key=lambda r: (policy.level(r), r.arrival, r.sample_idx))


def choose_victim(
    needy: Request, running: Sequence[Request], policy: QueuePolicy, blocks: BlockManager
) -> Request | None:
    """The request to preempt for `needy`, possibly itself; None when there is none."""
    spared = oldest([request for request in running if not request.is_held], policy)
    best, best_cost = None, None
    for request in running:
        if request is spared or not _may_lose(request, needy, policy):
            continue
        num_freed, num_lost = blocks.freed_by_preemption(request.request_id)
        if num_freed == 0:
            continue
        cost = (-policy.level(request), num_lost / num_freed, -request.arrival, -request.sample_idx)
        if best_cost is None or cost < best_cost:
            best, best_cost = request, cost
    return best


def displaced_by(
    newcomer: Request, running: Sequence[Request], policy: QueuePolicy, blocks: BlockManager
) -> list[Request]:
    """Who may be preempted so that `newcomer` comes in, the first to go first."""
    level = policy.level(newcomer)
    costs = []
    for request in running:
        if policy.level(request) <= level or _would_lose_all(request):
            continue
        num_freed, num_lost = blocks.freed_by_preemption(request.request_id)
        lost_per_block = num_lost / max(1, num_freed)
        cost = (-policy.level(request), lost_per_block, -request.arrival, -request.sample_idx)
        costs.append((cost, request))
    return [request for _, request in sorted(costs, key=itemgetter(0))]


def _may_lose(request: Request, needy: Request, policy: QueuePolicy) -> bool:
    if _would_lose_all(request):
        return False
    level, needy_level = policy.level(request), policy.level(needy)
    is_catching_up = request.num_tokens - request.num_computed_tokens > 1
    return level > needy_level or (level == needy_level and not is_catching_up)


def _would_lose_all(request: Request) -> bool:
    """Whether nothing has come of what it computed since it was preempted last."""
    return not request.is_held and request.num_tokens <= request.num_tokens_at_preemption
