"""The controller's choices against brute force, scripted costs, and a load that changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from statistics import mean

import pytest
from hasten.core.latency import EMPTY_STEP
from hasten.core.request import RequestId
from hasten.spec.depth import (
    EXPLORE_EVERY,
    NO_DRAFTING,
    Candidate,
    DepthController,
    Drafting,
    _Choice,
)

from tests.unit.spec.costs import cliff, controller_of, flat, linear

Costs = Callable[[int], float]
CONTEXT = 100


def candidates_of(survivals: Sequence[Sequence[float]]) -> list[Candidate]:
    return [Candidate(RequestId(f"r{i}"), CONTEXT, s) for i, s in enumerate(survivals)]


def geometric(acceptance: float, depth: int) -> list[float]:
    return [acceptance**j for j in range(1, depth + 1)]


def settle(
    controller: DepthController,
    survivals: Sequence[Sequence[float]],
    drafting: Drafting = NO_DRAFTING,
    num_steps: int = 2 * EXPLORE_EVERY - 2,
) -> list[int]:
    """The depths after many steps in which exactly the expected tokens are kept."""
    candidates = candidates_of(survivals)
    depths: list[int] = []
    for _ in range(num_steps):
        depths = controller.choose(candidates, drafting=drafting)
        kept = 1 + mean(
            sum(candidate.survivals[:depth])
            for candidate, depth in zip(candidates, depths, strict=True)
        )
        drafting_s = drafting.seconds(max(depths))
        slowdown = controller.slowdown_of([CONTEXT] * len(candidates), depths, drafting_s)
        controller.learn(kept, slowdown)
    return depths


def rate(
    seconds: Costs,
    survivals: Sequence[Sequence[float]],
    depths: Sequence[int],
    drafting: Drafting = NO_DRAFTING,
) -> float:
    """Expected tokens per second of a step."""
    tokens = sum(1 + sum(s[:depth]) for s, depth in zip(survivals, depths, strict=True))
    return tokens / (seconds(len(depths) + sum(depths)) + drafting.seconds(max(depths)))


def random_staircase(rng: random.Random) -> Costs:
    """Flat stretches of 1 to 6 rows, then a rise; each row a little dearer too."""
    seconds, level = [0.0], rng.uniform(0.5, 3.0)
    while len(seconds) < 40:
        slope = rng.uniform(0.0, 0.05)
        for _ in range(rng.randint(1, 6)):
            level += slope
            seconds.append(level)
        level += rng.uniform(0.0, 1.5)
    return lambda rows: seconds[rows]


def random_survivals(rng: random.Random) -> list[list[float]]:
    rows = []
    for _ in range(rng.randint(1, 4)):
        survival, survivals = 1.0, []
        for _ in range(rng.randint(0, 4)):
            survival *= rng.random() ** rng.choice((0.2, 1.0))
            survivals.append(survival)
        rows.append(survivals)
    return rows


def random_drafting(rng: random.Random) -> Drafting:
    """Often free."""
    if rng.random() < 0.5:
        return NO_DRAFTING
    return Drafting(rng.choice((0.0, rng.uniform(0.0, 0.3))), rng.uniform(0.0, 0.5))


def test_close_to_brute_force_on_staircases() -> None:
    """Mean loss of the long-run rate at most 1 % over 2,000 cases, none beyond 10 %."""
    rng = random.Random(7)
    losses = []
    for _ in range(2000):
        seconds, survivals = random_staircase(rng), random_survivals(rng)
        drafting = random_drafting(rng)
        depths = settle(controller_of(seconds, 30), survivals, drafting)
        best = max(
            rate(seconds, survivals, choice, drafting)
            for choice in product(*(range(len(s) + 1) for s in survivals))
        )
        losses.append(1 - rate(seconds, survivals, depths, drafting) / best)
    assert mean(losses) <= 0.01
    assert max(losses) <= 0.10


def test_one_request_is_decided_as_many_are() -> None:
    rng = random.Random(11)
    for _ in range(2000):
        controller = controller_of(
            random_staircase(rng), 30, target_s=rng.choice((None, rng.uniform(0.5, 9.0)))
        )
        controller.step_times.pair_s = rng.choice((0.0, 1e-4))
        controller.learn(rng.uniform(0.0, 20.0), 1.0)
        candidates = candidates_of(random_survivals(rng)[:1])
        drafting = random_drafting(rng)
        choice = _Choice.among(controller, candidates, EMPTY_STEP, drafting, None)
        assert choice.best() == choice._best_of_many()


def test_free_rows_are_all_used() -> None:
    assert settle(controller_of(flat), [geometric(0.5, 8)] * 3) == [8] * 3


def test_linear_costs_stop_where_survival_meets_the_price() -> None:
    """Against the formula's own optimum, for every acceptance."""
    found = []
    for acceptance in (0.05, 0.3, 0.5, 0.7, 0.9, 0.97):
        survivals = geometric(acceptance, 16)
        rates = [rate(linear, [survivals], [depth]) for depth in range(17)]
        depth = settle(controller_of(linear), [survivals])[0]
        assert rates[depth] >= 0.99 * max(rates)
        found.append(depth)
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] >= 12


@pytest.mark.parametrize("load", [1, 2, 4])
def test_a_cliff_is_not_stepped_over(load: int) -> None:
    depths = settle(controller_of(cliff), [geometric(0.6, 8)] * load)
    assert sum(depths) == 8 - load


def test_beyond_the_cliff_rows_are_free_again() -> None:
    assert settle(controller_of(cliff), [geometric(0.9, 8)] * 9) == [8] * 9


def test_nothing_is_drafted_where_rows_cost_as_much_as_steps() -> None:
    """The same acceptance; only the cost differs."""
    survivals = [geometric(0.9, 8)] * 4
    assert settle(controller_of(lambda rows: 0.001 * rows), survivals) == [0] * 4
    assert min(settle(controller_of(linear), survivals)) > 2


def test_a_drafter_pass_has_to_pay() -> None:
    survivals = [geometric(0.6, 8)]
    assert settle(controller_of(flat), survivals, drafting=Drafting(0.0, 0.0001))[0] >= 4
    assert settle(controller_of(flat), survivals, drafting=Drafting(0.0, 0.0005))[0] in (1, 2)
    assert settle(controller_of(flat), survivals, drafting=Drafting(0.0, 0.002)) == [0]


def test_what_drafting_takes_once_is_shared_by_its_levels() -> None:
    """A start of 0.8 ms and passes of 0.1: nothing is drafted, or several levels."""
    drafting = Drafting(0.0008, 0.0001)
    assert settle(controller_of(flat), [geometric(0.3, 8)], drafting=drafting) == [0]
    assert settle(controller_of(flat), [geometric(0.8, 8)], drafting=drafting)[0] >= 4


def test_many_requests_share_a_drafter_pass() -> None:
    survivals = geometric(0.4, 4)
    assert settle(controller_of(flat), [survivals], drafting=Drafting(0.0, 0.001)) == [0]
    assert min(settle(controller_of(flat), [survivals] * 16, drafting=Drafting(0.0, 0.0005))) >= 1


def test_long_contexts_draft_less() -> None:
    controller = controller_of(linear)
    controller.step_times.pair_s = 2e-8
    near, far = RequestId("near"), RequestId("far")
    survivals = geometric(0.8, 8)
    for _ in range(EXPLORE_EVERY - 1):
        depths = controller.choose(
            [Candidate(near, 100, survivals), Candidate(far, 9000, survivals)]
        )
    assert depths[1] < depths[0]


def test_a_target_latency_is_kept() -> None:
    """Steps of at most 2 ms: ten rows of `linear`."""
    survivals = [geometric(0.95, 8)] * 4
    assert sum(settle(controller_of(linear), survivals)) > 6
    bounded = controller_of(linear, target_s=0.002)
    for _ in range(3 * EXPLORE_EVERY):
        assert sum(bounded.choose(candidates_of(survivals))) <= 6
    assert controller_of(linear, target_s=0.001).choose(candidates_of(survivals)) == [0] * 4


def test_drafting_passes_count_towards_the_target_too() -> None:
    """Of 0.6 ms to spare, a pass takes 0.2: four drafts of one level, or two over two."""
    survivals = [geometric(0.95, 8)] * 4
    bounded = controller_of(linear, target_s=0.0020001)
    assert bounded.plan(candidates_of(survivals), EMPTY_STEP, Drafting(0.0, 0.0002)) == [1] * 4
    assert bounded.plan(candidates_of(survivals), EMPTY_STEP, Drafting(0.0, 0.0007)) == [0] * 4


def test_a_prompt_beside_counts_only_as_far_as_the_target_lets_it() -> None:
    survivals = [geometric(0.95, 8)]
    controller = controller_of(linear, target_s=0.002)
    beside = EMPTY_STEP.with_chunk(0, 200, 1)
    assert 0 < sum(controller.choose(candidates_of(survivals), beside)) <= 8


def test_a_step_holds_no_more_rows_than_it_may() -> None:
    survivals = [geometric(0.9, 8)] * 4
    for _ in range(3 * EXPLORE_EVERY):
        assert sum(controller_of(flat, max_rows=12).choose(candidates_of(survivals))) <= 8


def test_exploring_takes_its_share_and_no_more() -> None:
    controller = controller_of(lambda rows: 0.001 * rows)
    candidates = candidates_of([geometric(0.3, 8)] * 5)
    chosen = []
    for _ in range(20 * EXPLORE_EVERY):
        controller.learn(1.0, 1.0)
        chosen.append(controller.choose(candidates))
    explored = [depths for depths in chosen if any(depths)]
    assert len(explored) == 20
    assert all(sum(depths) == 1 for depths in explored)
    assert all(any(depths[i] for depths in explored) for i in range(5))


def test_small_advantages_change_nothing() -> None:
    controller = controller_of(linear)
    before = settle(controller, [geometric(0.70, 8)])
    assert controller.choose(candidates_of([geometric(0.705, 8)])) == before


def test_a_forgotten_request_leaves_nothing() -> None:
    controller = controller_of(linear)
    settle(controller, [geometric(0.7, 8)])
    controller.forget(RequestId("r0"))
    assert not controller._depths
