"""Histories, proposers and depths together, over requests whose future is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean

import pytest
from hasten.core.latency import EMPTY_STEP, StepShape
from hasten.core.params import Speculative
from hasten.core.request import Request
from hasten.spec.depth import EXPLORE_EVERY
from hasten.spec.proposer import Proposer
from hasten.spec.speculator import Speculator

from tests.unit.spec.costs import controller_of, flat, linear
from tests.unit.spec.texts import GuessingProposer, advance, request_of

DEEP = [16] * 64


def speculator_of(
    *proposers: Proposer,
    seconds: Callable[[int], float] = linear,
    max_depth: int = 8,
    fixed_depth: int | None = None,
) -> Speculator:
    named = {f"p{i}": proposer for i, proposer in enumerate(proposers)}
    return Speculator(named, controller_of(seconds), max_depth, fixed_depth)


def requests_of(count: int) -> list[Request]:
    return [request_of(f"r{i}", [1, 2, 3]) for i in range(count)]


def run(speculator: Speculator, requests: Sequence[Request], num_steps: int) -> list[list[int]]:
    """The depths of each step."""
    depths = []
    for _ in range(num_steps):
        drafts = speculator.speculate(requests, DEEP[: len(requests)], EMPTY_STEP)
        for request, draft in zip(requests, drafts, strict=True):
            advance(request, draft)
        depths.append([len(draft) for draft in drafts])
    return depths


def flatten(rows: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in rows for value in row]


def test_a_fixed_depth_is_always_that_depth() -> None:
    for depth in (0, 1, 3, 16):
        speculator = speculator_of(GuessingProposer(0.0), fixed_depth=depth)
        assert run(speculator, requests_of(2), 10) == [[depth] * 2] * 10


def test_at_depth_0_nobody_is_asked() -> None:
    proposer = GuessingProposer(0.5)
    run(speculator_of(proposer, max_depth=0), requests_of(2), 10)
    assert proposer.num_asked == 0


def test_a_request_may_ask_for_less() -> None:
    requests = [
        request_of("off", [1], speculative=Speculative(enabled=False)),
        request_of("two", [1], speculative=Speculative(max_depth=2)),
        request_of("one way", [1], speculative=Speculative(method="p1")),
        request_of("all", [1]),
    ]
    first, second = GuessingProposer(1.0), GuessingProposer(1.0)
    speculator = speculator_of(first, second, seconds=flat)
    assert run(speculator, requests, 3)[-1] == [0, 2, 8, 8]
    assert (first.num_asked, second.num_asked) == (6, 9)


def test_the_depth_finds_the_acceptance_whatever_the_confidence_says() -> None:
    def settled_depth(acceptance: float, confidence: float) -> float:
        speculator = speculator_of(GuessingProposer(acceptance, confidence))
        return mean(flatten(run(speculator, requests_of(4), 200)[100:]))

    assert settled_depth(0.02, 0.9) < 0.2
    assert settled_depth(0.9, 0.3) > 4
    assert settled_depth(0.5, 0.9) == pytest.approx(settled_depth(0.5, 0.5), abs=1.0)


def test_acceptance_that_changes_is_followed_within_a_request() -> None:
    proposer, requests = GuessingProposer(0.9, 0.5), requests_of(1)
    speculator = speculator_of(proposer)
    before = mean(flatten(run(speculator, requests, 150)[50:]))
    proposer.acceptance = 0.02
    low = mean(flatten(run(speculator, requests, 150)[100:]))
    proposer.acceptance = 0.9
    after = mean(flatten(run(speculator, requests, 250)[150:]))
    assert low < 1.0
    assert after == pytest.approx(before, abs=1.5)


def steep(rows: int) -> float:
    """Rows are cheap up to sixteen; after that each takes half a step of one row."""
    return 0.002 + 0.00005 * rows + 0.001 * max(0, rows - 16)


def test_a_jump_in_load_settles_within_50_steps() -> None:
    """Between one request and 32 of them, both ways; then depths change at most a few times."""
    speculator = speculator_of(GuessingProposer(0.75, 0.75), seconds=steep)
    alone = run(speculator, requests_of(1), 150)
    assert mean(flatten(alone[50:])) > 4
    many = [request_of(f"many{i}", [1, 2]) for i in range(32)]
    busy = run(speculator, many, 350)
    assert mean(flatten(busy[50:])) < 0.5
    assert num_changes(busy[50:]) <= 32
    for request in many:
        speculator.forget(request.request_id)
    quiet = run(speculator, [request_of("last", [1, 2])], 100)
    assert mean(flatten(quiet[50:])) > 4


@pytest.mark.parametrize(("load", "least"), [(1, 2.0), (4, 0.9)])
def test_rows_that_seemed_dear_at_the_start_are_tried(load: int, least: float) -> None:
    """A profile of a bad moment, in which all but the first size took ten times as long."""
    speculator = speculator_of(
        GuessingProposer(0.75, request_s=0.00005),
        seconds=lambda rows: linear(rows) * (1 if rows <= load else 10),
    )
    model, requests = speculator._controller.step_times, requests_of(load)
    depths: list[list[int]] = []
    for _ in range(1500):
        depths += run(speculator, requests, 1)
        rows = load + sum(depths[-1])
        model.observe(StepShape(rows, rows, 0, 0, load), linear(rows))
    assert mean(flatten(depths[-200:])) > least


def test_a_steady_load_keeps_its_depth() -> None:
    speculator = speculator_of(GuessingProposer(0.75, 0.75))
    depths = run(speculator, requests_of(4), 450)[50:]
    assert num_changes(depths) / 4 <= 0.1 * len(depths)


def num_changes(depths: Sequence[Sequence[int]]) -> int:
    """How often a request's depth differs from that of the step before."""
    return sum(a != b for before, now in pairwise(depths) for a, b in zip(before, now, strict=True))


def test_the_better_proposer_is_used_for_each_request() -> None:
    good, bad = GuessingProposer(0.9, 0.5), GuessingProposer(0.1, 0.5)
    requests = requests_of(2)
    run(speculator_of(good, bad), requests, 100)
    alone = requests_of(2)
    run(speculator_of(GuessingProposer(0.9, 0.5)), alone, 100)
    for request, reference in zip(requests, alone, strict=True):
        assert len(request.token_ids) > 0.9 * len(reference.token_ids)


def test_the_gain_is_that_of_the_costs() -> None:
    speculator = speculator_of(GuessingProposer(0.8, 0.8))
    requests = requests_of(4)
    assert speculator.gain == 1.0
    depths = run(speculator, requests, 300)
    tokens = sum(len(request.token_ids) - 3 for request in requests)
    seconds = sum(linear(4 + sum(step)) for step in depths)
    assert speculator.gain == pytest.approx(tokens / seconds / (4 / linear(4)), rel=0.15)


def test_hopeless_requests_are_asked_for_now_and_then_only() -> None:
    proposer = GuessingProposer(0.0, 0.5, request_s=0.0001)
    speculator, requests = speculator_of(proposer), requests_of(2)
    run(speculator, requests, 96)
    proposer.num_asked = 0
    run(speculator, requests, 320)
    assert proposer.num_asked == 2 * 320 / EXPLORE_EVERY


def test_the_end_of_a_request_is_passed_on() -> None:
    proposer, requests = GuessingProposer(0.5), requests_of(2)
    speculator = speculator_of(proposer)
    run(speculator, requests, 5)
    for request in requests:
        speculator.forget(request.request_id)
    assert proposer.forgotten == [request.request_id for request in requests]
    assert not speculator._pending


def test_a_newcomer_is_asked_for_while_the_others_rest() -> None:
    proposer = GuessingProposer(0.0, 0.5, request_s=0.0001)
    speculator, requests = speculator_of(proposer), requests_of(4)
    run(speculator, requests, 3 * EXPLORE_EVERY + 1)
    num_asked = proposer.num_asked
    run(speculator, requests, EXPLORE_EVERY // 2)
    assert proposer.num_asked == num_asked
    run(speculator, [*requests, request_of("new", [1, 2, 3])], 1)
    assert proposer.num_asked == num_asked + 1


def test_a_request_of_an_id_that_rested_is_asked_for() -> None:
    proposer = GuessingProposer(0.0, 0.5, request_s=0.0001)
    speculator, requests = speculator_of(proposer), requests_of(4)
    run(speculator, requests, 3 * EXPLORE_EVERY + 2)
    num_asked = proposer.num_asked
    speculator.forget(requests[0].request_id)
    run(speculator, [request_of("r0", [1, 2, 3]), *requests[1:]], 1)
    assert proposer.num_asked == num_asked + 1
