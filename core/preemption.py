"""Which request gives its blocks back when memory runs out, and how that is kept rare.

Within the least urgent level that offers one, the victim is the request that loses the fewest
computed tokens per block it really frees (blocks that others hold stay); among equals the one that
came last. Never:

- the oldest of the most urgent level, so that something always moves;
- a request more urgent than the one in need;
- one that has got no token since it was preempted last, so that nobody is preempted in vain; nor
  one of the needy's own level that is still catching up, for its blocks are reserved;
- one that frees no block.

How long outputs get is not known when requests are let in, so memory can only be overbooked and
preemption shows by how much: `Headroom` learns from it how many blocks to leave for growth.

Exercised by `pytest tests/unit/core/test_scheduler.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

AFFORDABLE_SHARE = 0.08
GROWTH = 2.0
SHRINK = 0.95

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.policy import QueuePolicy
    from hasten.core.request import Request


class Headroom:
    """Blocks that stay free for the running requests to grow when another one is let in.

    One for each at least: whoever comes back must not displace those that run. A preemption
    doubles it. It shrinks again once the tokens lost are paid for, each token computed paying for
    `AFFORDABLE_SHARE` of one. So recomputing stays a small share of all work, however long outputs
    get, and little concurrency is given up where they stay short.
    """

    def __init__(self) -> None:
        self._blocks = 1.0
        self._num_unpaid = 0.0

    def num_blocks(self, running: Sequence[Request], block_size: int) -> int:
        """Blocks to leave in every group beside `running`: none more than they can ever fill."""
        each = int(self._blocks)
        if each == 1:
            return len(running)
        return sum(
            min(each, (request.max_total_tokens - request.num_tokens) // block_size + 1)
            for request in running
        )

    def note_preemption(self, num_lost_tokens: int) -> None:
        self._blocks *= GROWTH
        self._num_unpaid += num_lost_tokens

    def note_step(self, num_computed_tokens: int) -> None:
        self._num_unpaid = max(0.0, self._num_unpaid - AFFORDABLE_SHARE * num_computed_tokens)
        if self._num_unpaid == 0.0:
            self._blocks = max(1.0, SHRINK * self._blocks)


def oldest(running: Sequence[Request], policy: QueuePolicy) -> Request:
    """The request that is never preempted: of the most urgent level, the first to arrive."""
    return min(running, key=lambda r: (policy.level(r), r.arrival, r.sample_idx))


def choose_victim(
    needy: Request, running: Sequence[Request], policy: QueuePolicy, blocks: BlockManager
) -> Request | None:
    """The request to preempt for `needy`, possibly itself; None when there is none."""
    spared = oldest(running, policy)
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


def _may_lose(request: Request, needy: Request, policy: QueuePolicy) -> bool:
    if request.num_tokens <= request.num_tokens_at_preemption:
        return False
    level, needy_level = policy.level(request), policy.level(needy)
    is_catching_up = request.num_tokens - request.num_computed_tokens > 1
    return level > needy_level or (level == needy_level and not is_catching_up)
