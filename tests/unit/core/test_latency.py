"""The step-time model against scripted costs: no clock, no model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hasten.core.latency import (
    EMPTY_STEP,
    NUM_OVERRUNS,
    REFIT_EVERY,
    STALE_AFTER,
    Chunk,
    ItlBudget,
    StepShape,
    StepTimeModel,
)
from hasten.core.step_profile import profile
from hasten.kernels.program import Capacity

CAPACITY = Capacity(max_tokens=2048, max_requests=64, max_logit_rows=64, max_model_len=8192)
Cost = Callable[[StepShape], float]


def staircase(shape: StepShape) -> float:
    """Tiles of 8 rows, logits by the row, attention by key and pair: milliseconds."""
    tiles = -(-shape.num_tokens // 8)
    ms = 2.0 + 0.5 * tiles + 0.1 * shape.num_logit_rows + 0.02 * shape.num_requests
    return 1e-3 * (ms + 4e-4 * shape.kv_tokens_read + 1e-5 * shape.query_key_pairs)


def step_of(chunks: Sequence[Chunk]) -> StepShape:
    shape = EMPTY_STEP
    for chunk in chunks:
        shape = shape.with_chunk(*chunk)
    return shape


def decode(num_requests: int, context: int, depth: int = 0) -> StepShape:
    return step_of([Chunk(context, 1 + depth, 1 + depth)] * num_requests)


def profiled(cost: Cost, budget_s: float = 1.0) -> StepTimeModel:
    return profile(lambda chunks: cost(step_of(chunks)), CAPACITY, budget_s)


def test_a_shape_counts_keys_and_pairs() -> None:
    shape = EMPTY_STEP.with_chunk(10, 3, 1).with_chunk(0, 2)
    assert shape == StepShape(
        num_tokens=5,
        num_logit_rows=1,
        kv_tokens_read=13 + 2,
        query_key_pairs=(11 + 12 + 13) + (1 + 2),
        num_requests=2,
    )


@pytest.mark.parametrize("num_requests", [1, 2, 8, 32, 64])
@pytest.mark.parametrize("context", [16, 1000, 4000])
def test_a_profile_predicts_decoding(num_requests: int, context: int) -> None:
    shape = decode(num_requests, context)
    assert profiled(staircase).step_time(shape) == pytest.approx(staircase(shape), rel=0.15)


@pytest.mark.parametrize("num_requests", [4, 8, 9, 16, 33])
def test_a_profile_knows_the_stairs_of_decoding(num_requests: int) -> None:
    shape = decode(num_requests, 200)
    assert profiled(staircase).step_time(shape) == pytest.approx(staircase(shape), rel=0.02)


def test_a_load_is_counted_once_though_steps_are_foretold() -> None:
    """As the engine does: it asks for every step before it tells what that took."""
    model = profiled(staircase)
    shape = decode(8, 200)
    for load in (1.0, 1.6, 1.0):
        for _ in range(2 * REFIT_EVERY):
            model.step_time(shape)
            model.observe(shape, load * staircase(shape), staircase(shape))
        for known in (shape, decode(2, 200)):
            assert model.step_time(known) == pytest.approx(load * staircase(known), rel=0.05)


@pytest.mark.parametrize("shape", [step_of([Chunk(0, 512)]), step_of([Chunk(3000, 256, 1)])])
def test_a_profile_predicts_prefill(shape: StepShape) -> None:
    assert profiled(staircase).step_time(shape) == pytest.approx(staircase(shape), rel=0.15)


@pytest.mark.parametrize("budget_s", [0.1, 0.3, 1.0])
def test_a_profile_keeps_to_its_budget(budget_s: float) -> None:
    spent = 0.0

    def measure(chunks: Sequence[Chunk]) -> float:
        nonlocal spent
        seconds = staircase(step_of(chunks))
        spent += seconds
        return seconds

    profile(measure, CAPACITY, budget_s)
    assert spent < 1.5 * budget_s


@pytest.mark.parametrize("num_warm_up_runs", [1, 2])
def test_a_profile_leaves_out_the_runs_that_compile(num_warm_up_runs: int) -> None:
    num_runs: Counter[tuple[Chunk, ...]] = Counter()

    def measure(chunks: Sequence[Chunk]) -> float:
        num_runs[tuple(chunks)] += 1
        is_warm = num_runs[tuple(chunks)] > num_warm_up_runs
        return staircase(step_of(chunks)) if is_warm else 30.0

    model = profile(measure, CAPACITY, 1.0, num_warm_up_runs)
    for shape in (decode(1, 0), decode(64, 16), step_of([Chunk(0, 512)])):
        assert model.step_time(shape) == profiled(staircase).step_time(shape)


def test_a_busy_moment_falls_on_all_small_sizes() -> None:
    """Twice as slow for 20 ms and more: longer than the runs of one size take."""
    now_s = 0.0

    def measure(chunks: Sequence[Chunk]) -> float:
        nonlocal now_s
        is_busy = now_s % 0.1 < 0.04
        seconds = staircase(step_of(chunks)) * (2 if is_busy else 1)
        now_s += seconds
        return seconds

    model = profile(measure, CAPACITY, 1.0)
    for count in (1, 2, 4, 8, 9, 16):
        shape = step_of([Chunk(0, count, count)])
        assert model.step_time(shape) == pytest.approx(staircase(shape), rel=0.1)


def test_a_machine_too_slow_for_a_profile_still_gets_a_first_guess() -> None:
    model = profile(lambda _: 5.0, CAPACITY, budget_s=0.6)
    assert model.step_time(decode(1, 0)) == pytest.approx(5.0)


@pytest.mark.parametrize(
    "capacity",
    [
        Capacity(max_tokens=1, max_requests=1, max_logit_rows=1, max_model_len=1),
        Capacity(max_tokens=2, max_requests=1, max_logit_rows=1, max_model_len=3),
        Capacity(max_tokens=16, max_requests=16, max_logit_rows=16, max_model_len=8),
    ],
)
def test_a_profile_stays_within_capacity(capacity: Capacity) -> None:
    def measure(chunks: Sequence[Chunk]) -> float:
        assert sum(chunk.num_tokens for chunk in chunks) <= capacity.max_tokens
        assert len(chunks) <= capacity.max_requests
        for chunk in chunks:
            assert chunk.start + chunk.num_tokens <= capacity.max_model_len
        return staircase(step_of(chunks))

    assert profile(measure, capacity, 1.0).step_time(decode(1, 0)) > 0


def serve(model: StepTimeModel, cost: Cost, shapes: Sequence[StepShape], seed: int = 1) -> None:
    """Observe noisy steps; one in ten is ten times slower, as on a busy machine."""
    rng = random.Random(seed)
    for shape in shapes:
        slow = 10.0 if rng.random() < 0.1 else 1.0
        model.observe(shape, cost(shape) * rng.uniform(0.98, 1.02) * slow)


def mixed_shapes(num_steps: int, seed: int = 2) -> list[StepShape]:
    rng = random.Random(seed)
    sizes = (1, 4, 8, 9, 16, 17)
    return [decode(rng.choice(sizes), rng.randrange(16, 6000)) for _ in range(num_steps)]


def test_serving_corrects_a_wrong_profile() -> None:
    model = profiled(lambda shape: 0.5 * staircase(shape))
    serve(model, staircase, mixed_shapes(40 * REFIT_EVERY))
    for size in (1, 4, 8, 9, 16, 17):
        for context in (64, 2000, 5000):
            shape = decode(size, context)
            assert model.step_time(shape) == pytest.approx(staircase(shape), rel=0.15)


def test_serving_finds_the_stairs() -> None:
    """Sizes between two profiled ones are learnt, so a step up shows where it is."""
    model = profiled(staircase)
    serve(model, staircase, [decode(n, 16) for n in (40, 41) for _ in range(4 * REFIT_EVERY)])
    rise = model.step_time(decode(41, 16)) - model.step_time(decode(40, 16))
    assert rise == pytest.approx(staircase(decode(41, 16)) - staircase(decode(40, 16)), rel=0.3)


def test_a_machine_that_slows_down_slows_sizes_that_do_not_occur_too() -> None:
    """Else rows beyond those of the present load would seem to cost nothing."""
    model = profiled(staircase)
    now, more = decode(8, 100), decode(12, 100)
    before = model.step_time(more) / model.step_time(now)
    rng = random.Random(1)
    for _ in range(4 * REFIT_EVERY):
        own = staircase(now) * rng.uniform(0.98, 1.02)
        model.observe(now, 1.6 * own * rng.uniform(0.7, 1.3), own)
    assert model.step_time(now) == pytest.approx(1.6 * staircase(now), rel=0.15)
    assert model.step_time(more) / model.step_time(now) == pytest.approx(before, rel=0.05)


def test_work_that_is_slower_than_in_the_profile_is_so_at_all_sizes() -> None:
    """Else the rows that drafts would add seem cheap from the first refit on."""
    model = profiled(staircase)
    now, more = decode(8, 100), decode(12, 100)
    before = model.step_time(more) / model.step_time(now)
    serve(model, lambda shape: 1.1 * staircase(shape), [now] * (4 * REFIT_EVERY))
    assert model.step_time(now) == pytest.approx(1.1 * staircase(now), rel=0.03)
    assert model.step_time(more) / model.step_time(now) == pytest.approx(before, rel=0.05)


def test_noise_alone_moves_nothing() -> None:
    model = profiled(staircase)
    shapes = [decode(8, 100)] * (20 * REFIT_EVERY)
    serve(model, staircase, shapes[: len(shapes) // 2])
    settled = model.step_time(decode(8, 100))
    serve(model, staircase, shapes[len(shapes) // 2 :], seed=3)
    assert model.step_time(decode(8, 100)) == settled


def test_the_budget_keeps_predicted_steps_under_the_target() -> None:
    model = profiled(staircase)
    budget = ItlBudget(model, target_s=0.020, min_chunk=16)
    step = decode(8, 500)
    taken = budget.max_chunk(step, 0, 2048)
    assert 16 < taken < 2048
    assert model.step_time(step.with_chunk(0, taken, 1)) <= 0.020
    assert model.step_time(step.with_chunk(0, taken + 1, 1)) > 0.020


def test_a_longer_context_leaves_less_room() -> None:
    budget = ItlBudget(profiled(staircase), target_s=0.020, min_chunk=16)
    step = decode(8, 500)
    assert budget.max_chunk(step, 6000, 2048) < budget.max_chunk(step, 0, 2048)


def test_a_target_that_no_step_meets_starves_no_prompt() -> None:
    budget = ItlBudget(profiled(staircase), target_s=1e-6, min_chunk=16)
    assert budget.max_chunk(decode(8, 500), 0, 2048) == 16
    assert budget.max_chunk(decode(8, 500), 0, 5) == 5


def test_an_easy_target_takes_everything() -> None:
    budget = ItlBudget(profiled(staircase), target_s=10.0, min_chunk=16)
    assert budget.max_chunk(decode(8, 500), 0, 2048) == 2048


def test_steps_are_kept_below_the_longest_they_may_take_when_real_ones_take_longer() -> None:
    model = profiled(staircase)
    budget = ItlBudget(model, target_s=0.020, min_chunk=16, longest_s=0.030)
    shape = EMPTY_STEP.with_chunk(0, 100)
    unknown = budget.max_chunk(EMPTY_STEP, 0, 4000)
    for factor in (1.2, 1.2, 9.0):  # 20 ms become 24, but for one
        model.observe(shape, factor * model.step_time(shape))
    quiet = budget.max_chunk(EMPTY_STEP, 0, 4000)
    assert quiet > unknown
    for _ in range(2):
        model.observe(shape, 2.0 * model.step_time(shape))
    model.observe(shape, model.step_time(shape))
    cut = budget.max_chunk(EMPTY_STEP, 0, 4000)
    assert 2.0 * model.step_time(EMPTY_STEP.with_chunk(0, cut, 1)) <= 0.030
    assert cut < quiet
    for _ in range(NUM_OVERRUNS):
        model.observe(shape, model.step_time(shape))
    assert budget.max_chunk(EMPTY_STEP, 0, 4000) == quiet
    for _ in range(STALE_AFTER + 1):
        model.observe(decode(3, 100), model.step_time(decode(3, 100)))
    assert budget.max_chunk(EMPTY_STEP, 0, 4000) == unknown


def test_a_small_step_that_became_slow_leaves_larger_ones_as_much_above_it() -> None:
    """Steps of one token take twice as long all at once, and no others are seen."""

    def cost(shape: StepShape) -> float:
        return 0.002 + 0.00025 * shape.num_tokens

    model = profiled(cost)
    shape = decode(1, 100)
    for _ in range(20 * REFIT_EVERY):
        model.observe(shape, 2 * cost(shape))
    assert model.step_time(shape) == pytest.approx(2 * cost(shape), rel=0.05)
    nine = decode(1, 100, depth=8)
    assert model.step_time(nine) == pytest.approx(2 * cost(nine), rel=0.15)
