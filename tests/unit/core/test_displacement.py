"""A more urgent request takes the place of running ones; first tokens take what time they need."""

from __future__ import annotations

from hasten.core.blocks import BlockManager
from hasten.core.latency import FirstTokenBudget, StepTimeModel
from hasten.core.options import SchedulerOptions
from hasten.core.policy import PriorityFirst, QueuePolicy
from hasten.core.request import Request
from hasten.core.scheduler import Scheduler

from tests.unit.core.simulation import kv_plan, make_request


def per_token(seconds: float) -> StepTimeModel:
    model = StepTimeModel()
    model.body.set(1, seconds)
    model.body.set(1001, 1001 * seconds)
    return model


def make_scheduler(
    policy: QueuePolicy, *, num_blocks: int = 65, max_num_seqs: int = 2, max_tokens: int = 64
) -> Scheduler:
    blocks = BlockManager(
        kv_plan((None,), num_blocks, 4),
        num_table_rows=max_num_seqs,
        max_model_len=256,
        max_chunk=max_tokens,
    )
    options = SchedulerOptions(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_tokens)
    first_tokens = FirstTokenBudget(per_token(0.001), min_chunk=4)
    return Scheduler(options, blocks, policy, first_tokens=first_tokens)


def step(scheduler: Scheduler) -> dict[str, int]:
    """One step of a model that always says 0; returns who computed how many tokens."""
    plan = scheduler.schedule()
    assert plan is not None
    done = {}
    for planned in plan.requests:
        request = scheduler.requests[planned.request_id]
        if planned.start + planned.num_tokens == request.num_tokens:
            done[planned.request_id] = [0]
    scheduler.update(plan, done)
    return {planned.request_id.partition("/")[0]: planned.num_tokens for planned in plan.requests}


def names(requests: list[Request]) -> set[str]:
    return {request.group_id for request in requests}


def test_an_urgent_request_displaces_the_least_urgent_of_a_full_house() -> None:
    scheduler = make_scheduler(PriorityFirst())
    scheduler.add(make_request("usual", (1,) * 8, 30, 0, priority=1))
    scheduler.add(make_request("idle", (2,) * 8, 30, 1, priority=2))
    step(scheduler)
    scheduler.add(make_request("urgent", (3,) * 8, 30, 2, priority=0))
    assert "urgent" in step(scheduler)
    assert names(scheduler.running) == {"usual", "urgent"}
    assert names(scheduler.waiting) == {"idle"}


def test_equals_displace_nobody() -> None:
    scheduler = make_scheduler(PriorityFirst())
    for i, name in enumerate("abc"):
        scheduler.add(make_request(name, (i,) * 8, 30, i, priority=1))
    step(scheduler)
    step(scheduler)
    assert names(scheduler.running) == {"a", "b"}
    assert scheduler.num_preemptions == 0


def test_memory_is_made_only_if_it_will_be_enough() -> None:
    scheduler = make_scheduler(PriorityFirst(), num_blocks=21, max_num_seqs=4)
    scheduler.add(make_request("large", (1,) * 40, 8, 0, priority=0))
    scheduler.add(make_request("idle", (2,) * 8, 8, 1, priority=5))
    step(scheduler)
    scheduler.add(make_request("too-large", (3,) * 60, 8, 2, priority=1))
    step(scheduler)
    assert names(scheduler.running) == {"large", "idle"}
    scheduler.add(make_request("fits", (4,) * 24, 4, 3, priority=0))
    step(scheduler)
    assert names(scheduler.running) == {"large", "fits"}


def test_a_step_that_gives_a_first_token_is_at_most_twice_as_long_as_it_needs() -> None:
    scheduler = make_scheduler(PriorityFirst(min_chunk=4), num_blocks=257, max_num_seqs=4)
    scheduler.add(make_request("long", (1,) * 200, 8, 0))
    assert step(scheduler) == {"long": 64}
    scheduler.add(make_request("short", (2,) * 10, 8, 1))
    computed = step(scheduler)
    assert computed["short"] == 10
    assert 4 <= computed["long"] <= 10
    # Now the short one decodes, and the long one is bounded by the stall bound alone.
    assert step(scheduler) == {"short": 1, "long": 63}
