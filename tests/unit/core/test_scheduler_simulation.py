"""Ten thousand random workloads, served and checked step by step; and the price of a tight pool."""

from __future__ import annotations

import copy
import random

import pytest

from tests.unit.core.simulation import (
    Setting,
    Simulation,
    make_request,
    random_requests,
    run_random_workload,
)

NUM_WORKLOADS = 10_000
NUM_PARTS = 10
LONG_RUN = 10**18


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_random_workloads(part: int) -> None:
    """Windows, priorities, forks, drafts, aborts, scored prompts, tight pools: see `simulation`."""
    num_preemptions = num_cached = 0
    for seed in range(part, NUM_WORKLOADS, NUM_PARTS):
        simulation = run_random_workload(seed)
        num_preemptions += simulation.scheduler.num_preemptions
        num_cached += simulation.scheduler.num_cached_tokens
    # Otherwise the workloads would prove nothing.
    assert num_preemptions > 50
    assert num_cached > 1000


KINDS = {
    "chat": ((20, 400), (20, 400)),
    "long outputs": ((10, 60), (200, 700)),
    "long prompts": ((300, 700), (10, 80)),
}


def serve(kind: str, seed: int, num_blocks: int) -> Simulation:
    """48 requests at once, up to 24 running, in `num_blocks` of 16 tokens."""
    rng = random.Random(seed)
    setting = Setting(
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=24,
        max_num_batched_tokens=512,
        max_model_len=800,
        stop_every=LONG_RUN,
        checks_integrity=False,
    )
    simulation = Simulation(setting, rng)
    prompt_lens, output_lens = KINDS[kind]
    for arrival in range(48):
        prompt = tuple(rng.randrange(1000) for _ in range(rng.randrange(*prompt_lens)))
        simulation.add(make_request(f"r{arrival}", prompt, rng.randrange(*output_lens), arrival))
    while simulation.step():
        pass
    simulation.check_end()
    return simulation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_a_pool_of_60_percent_recomputes_little(kind: str, seed: int) -> None:
    ample = serve(kind, seed, num_blocks=3000)
    assert ample.scheduler.num_preemptions == 0
    tight = serve(kind, seed, num_blocks=1 + ample.peak_blocks * 6 // 10)
    scheduler = tight.scheduler
    assert scheduler.num_recomputed_tokens <= 0.1 * scheduler.num_computed_tokens
    assert tight.num_steps <= 2.5 * ample.num_steps


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
