"""Ten thousand random workloads, served and checked step by step; and the price of a tight pool."""

from __future__ import annotations

import copy
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from hasten.core.request import RequestId

from tests.unit.core.simulation import (
    Optimist,
    Setting,
    Simulation,
    random_requests,
    run_random_workload,
)
from tests.unit.core.workloads import WORKLOADS, ample, full_demand, pool_of_60_percent, serve

NUM_WORKLOADS = 10_000
NUM_PARTS = 20


def run_part(part: int) -> tuple[int, int]:
    """Every `NUM_PARTS`th workload; returns the numbers of preemptions and of cached tokens."""
    num_preemptions = num_cached = 0
    for seed in range(part, NUM_WORKLOADS, NUM_PARTS):
        simulation = run_random_workload(seed)
        num_preemptions += simulation.scheduler.num_preemptions
        num_cached += simulation.scheduler.num_cached_tokens
    return num_preemptions, num_cached


def test_random_workloads() -> None:
    """Windows, priorities, forks, drafts, aborts, scored prompts, tight pools: see `simulation`.

    In processes of their own, as many as there are cores.
    """
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        for num_preemptions, num_cached in processes.map(run_part, range(NUM_PARTS)):
            # Otherwise the workloads would prove nothing.
            assert num_preemptions > 25
            assert num_cached > 500


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("block_size", [8, 16])
def test_a_pool_of_60_percent_recomputes_little(name: str, block_size: int) -> None:
    """60 % of what all requests fill at their ends, and of what an ample pool holds at once."""
    wishes = WORKLOADS[name](random.Random(block_size))
    roomy = ample(wishes, block_size)
    assert roomy.scheduler.num_preemptions == 0
    for demand in (full_demand(wishes, block_size), roomy.peak_blocks):
        tight = serve(wishes, pool_of_60_percent(wishes, block_size, demand), block_size)
        assert tight.recomputed_share <= 0.1
        oldest = RequestId("0/0")
        assert oldest not in tight.preempted


def cached_contents(simulation: Simulation) -> list[set[bytes]]:
    return [set(group.pool._block_of) for group in simulation.blocks._groups]


@pytest.mark.parametrize("seed", range(20))
def test_speculation_preempts_and_evicts_nothing(seed: int) -> None:
    """Every step is planned twice, with and without its drafts."""
    rng = random.Random(seed)
    setting = Setting(
        windows=rng.choice([(None,), (None, 6)]),
        num_blocks=rng.randrange(14, 20),
        max_num_batched_tokens=200,
        max_drafts=8,
        forecast=Optimist,
    )
    simulation = Simulation(setting, rng)
    num_drafts = 0
    for request in random_requests(rng, 6):
        simulation.add(request)
    while simulation.scheduler.requests:
        plain, drafting = copy.deepcopy(simulation), copy.deepcopy(simulation)
        for request in plain.scheduler.running:
            request.draft_token_ids.clear()
        plain_plan, plan = plain.scheduler.schedule(), drafting.scheduler.schedule()
        assert plan is not None
        assert plain_plan is not None
        assert plan.preempted == plain_plan.preempted
        assert cached_contents(drafting) == cached_contents(plain)
        assert {p.request_id for p in plan.requests} == {p.request_id for p in plain_plan.requests}
        num_drafts += sum(p.num_drafts for p in plan.requests)
        simulation.step()
    assert num_drafts > 0
