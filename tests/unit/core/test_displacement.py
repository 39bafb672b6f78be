"""A more urgent request takes the place of running ones; first tokens take what time they need."""

from __future__ import annotations

import pytest
from hasten.core.blocks import BlockManager
from hasten.core.latency import EMPTY_STEP, FirstTokenBudget, ItlBudget, StepTimeModel
from hasten.core.options import SchedulerOptions
from hasten.core.policy import FirstComeFirstServed, PriorityFirst, QueuePolicy
from hasten.core.request import FinishReason, Request, RequestId
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


def served(model: StepTimeModel) -> Scheduler:
    """A scheduler as the server makes it."""
    blocks = BlockManager(
        kv_plan((None,), 2049, 16), num_table_rows=16, max_model_len=8192, max_chunk=2048
    )
    options = SchedulerOptions(max_num_seqs=16, max_num_batched_tokens=2048)
    return Scheduler(
        options,
        blocks,
        FirstComeFirstServed(),
        ItlBudget(model, options.step_limit_s, 16),
        first_tokens=FirstTokenBudget(model, 16),
        prompt_budget=ItlBudget(model, options.prompt_limit_s, 16),
    )


def timed_step(scheduler: Scheduler, model: StepTimeModel) -> tuple[set[str], float]:
    """Who got a token in one step, and how long it took by the model's own prediction."""
    plan = scheduler.schedule()
    assert plan is not None
    shape = EMPTY_STEP
    done = {}
    for planned in plan.requests:
        shape = shape.with_chunk(planned.start, planned.num_tokens, planned.num_logit_rows)
        if planned.start + planned.num_tokens == scheduler.requests[planned.request_id].num_tokens:
            done[planned.request_id] = [0]
    scheduler.update(plan, done)
    return {request_id.partition("/")[0] for request_id in done}, model.step_time(shape)


def time_to_first_token(scheduler: Scheduler, model: StepTimeModel, request: Request) -> float:
    scheduler.add(request)
    total_s = 0.0
    while True:
        got, seconds = timed_step(scheduler, model)
        total_s += seconds
        if request.group_id in got:
            scheduler.finish(request.request_id, FinishReason.LENGTH)
            return total_s


@pytest.mark.parametrize("num_decoding", [0, 8])
@pytest.mark.parametrize("short_len", [1, 40, 150])
@pytest.mark.parametrize("pair_s", [0.0, 1e-6], ids=["cheap", "dear attention"])
def test_a_short_prompt_beside_a_long_one_takes_twice_its_time_and_a_step(
    num_decoding: int, short_len: int, pair_s: float
) -> None:
    model = per_token(0.0005)  # a CPU: 2,000 tokens per second
    model.pair_s = pair_s
    scheduler = served(model)
    for i in range(num_decoding):
        scheduler.add(make_request(f"stream{i}", (9,), 4000, i))
    if num_decoding:
        timed_step(scheduler, model)
    quiet_s = time_to_first_token(scheduler, model, make_request("quiet", (1,) * short_len, 8, 50))
    scheduler.add(make_request("long", (2,) * 7000, 8, 51))
    while pair_s and scheduler.requests[RequestId("long/0")].num_computed_tokens < 4500:
        timed_step(scheduler, model)
    for arrival in range(100, 103):
        _, under_way_s = timed_step(scheduler, model)  # the short one comes as this begins
        short = make_request(f"short{arrival}", (3 + arrival,) * short_len, 8, arrival)
        short_s = under_way_s + time_to_first_token(scheduler, model, short)
        least_chunk_s = 16 * (0.0005 + 5000 * pair_s)
        assert short_s <= 2 * quiet_s + under_way_s + least_chunk_s
    assert "long" in names(scheduler.running)


def test_a_long_prompt_alone_is_cut_for_whom_may_still_come() -> None:
    model = per_token(0.0005)
    scheduler = served(model)
    scheduler.add(make_request("long", (2,) * 7000, 8, 0))
    steps: list[tuple[set[str], float]] = []
    while not steps or steps[-1][0] == set():
        steps.append(timed_step(scheduler, model))
    assert 0.1 < max(seconds for _, seconds in steps) <= 0.15


@pytest.mark.parametrize("num_decoding", [0, 1])
@pytest.mark.parametrize("prompt_len", [1, 12, 16, 17, 40])
def test_many_short_prompts_stall_nobody(num_decoding: int, prompt_len: int) -> None:
    model = per_token(0.005)
    scheduler = served(model)
    if num_decoding:
        scheduler.add(make_request("stream", (9,), 400, 0))
        timed_step(scheduler, model)
    for i in range(15):
        scheduler.add(make_request(f"short{i}", (i + 10,) * prompt_len, 400, i + 1))
    waiting = {f"short{i}" for i in range(15)}
    while waiting:
        got, seconds = timed_step(scheduler, model)
        assert seconds <= 0.25
        waiting -= got
