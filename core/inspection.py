"""A look into an engine at work: which requests, and what the blocks are, for people who watch.

Exercised by `pytest tests/unit/core/test_isolation.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.messages import EngineState, RequestState

if TYPE_CHECKING:
    from hasten.core.blocks import BlockManager
    from hasten.core.request import Request
    from hasten.core.scheduler import Scheduler

MAX_CELLS = 2048
"""Bytes per KV group: what a page can show, and a message carry every second."""
MAX_REQUESTS = 1024


def inspect(scheduler: Scheduler, blocks: BlockManager) -> EngineState:
    """What runs and waits now; of a long queue, its head."""
    requests = [*scheduler.running, *scheduler.waiting][:MAX_REQUESTS]
    return EngineState(
        requests=[_state(request, blocks) for request in requests],
        blocks=[sum_up(states, MAX_CELLS) for states in blocks.states()],
    )


def sum_up(states: bytes, num_cells: int) -> bytes:
    """At most `num_cells` bytes: each the largest of as many of `states`."""
    size = -(-len(states) // num_cells)
    return bytes(max(states[i : i + size]) for i in range(0, len(states), size))


def _state(request: Request, blocks: BlockManager) -> RequestState:
    held = blocks.num_blocks_held(request.request_id) if request.request_id in blocks else ()
    return RequestState(
        request_id=request.group_id,
        sample_idx=request.sample_idx,
        client=request.client,
        status=request.status.value,
        priority=request.priority,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        num_blocks=sum(held),
        depth=len(request.draft_token_ids),
    )
