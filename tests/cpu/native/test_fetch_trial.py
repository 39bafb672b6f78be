"""Steps of few rows fetch weights ahead where that is faster, and try the other way at times."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

native = pytest.importorskip("hasten.kernels.cpu._native")


def fetching(
    num_steps: int,
    seconds: Callable[[int, bool], float],
    num_rows: Callable[[int], int] = lambda _: 1,
) -> list[bool]:
    """Whether each step fetched, where step i takes `seconds(i, whether it fetches)`."""
    trial = native.FetchTrial()
    chosen: list[bool] = []
    for i in range(num_steps):
        chosen.append(trial.begin(num_rows(i)))
        trial.end(seconds(i, chosen[-1]))
    return chosen


@pytest.mark.parametrize("gain", [0.75, 1.1])
def test_the_faster_way_is_found_in_noise(gain: float) -> None:
    rng = random.Random(1)

    def seconds(_: int, fetches: bool) -> float:
        spike = 3.0 if rng.random() < 0.05 else 1.0
        return 3e-3 * (gain if fetches else 1.0) * spike * rng.uniform(0.97, 1.03)

    chosen = fetching(2000, seconds)[300:]
    right = sum(fetches is (gain < 1) for fetches in chosen) / len(chosen)
    assert right > 0.97


def test_a_start_up_profile_sees_the_faster_way() -> None:
    chosen = fetching(20, lambda _, fetches: 3e-3 * (0.75 if fetches else 1.0))
    assert sum(chosen[7:]) >= 9


def test_steps_of_other_sizes_are_not_compared() -> None:
    rng = random.Random(1)
    rows = [rng.choice((1, 2, 3)) for _ in range(5000)]

    def seconds(i: int, fetches: bool) -> float:
        return 1e-3 * (2 + rows[i]) * (0.8 if fetches else 1.0)

    chosen = fetching(5000, seconds, rows.__getitem__)
    assert sum(chosen[500:]) > 0.97 * 4500
    alike = fetching(5000, lambda i, _: 1e-3 * (2 + rows[i]), rows.__getitem__)
    assert sum(alike[500:]) < 0.03 * 4500


def test_it_follows_a_machine_that_changes() -> None:
    def seconds(i: int, fetches: bool) -> float:
        return 3e-3 * (0.8 if fetches is (i < 1000) else 1.0)

    chosen = fetching(3000, seconds)
    assert sum(chosen[200:1000]) > 0.97 * 800
    assert sum(chosen[2000:]) < 0.03 * 1000


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_chain_whose_first_pass_is_slow_says_nothing(length: int) -> None:
    def seconds(i: int, _: bool) -> float:
        return 3e-4 if i % length == 0 else 1.5e-4

    chosen = fetching(5000, seconds)
    changes = sum(a is not b for a, b in pairwise(chosen[1000:]))
    assert changes <= 2 * 4000 / 61 + 2
