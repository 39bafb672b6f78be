"""Steps of few rows fetch weights ahead where that is faster, and try the other way now and then."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

native = pytest.importorskip("hasten.kernels.cpu._native")


def fetching(trial: object, num_steps: int, seconds: Callable[[int, bool], float]) -> list[bool]:
    """Whether each step fetched, where step i takes `seconds(i, whether it fetches)`."""
    chosen = []
    for i in range(num_steps):
        chosen.append(trial.begin())  # type: ignore[attr-defined]
        trial.end(seconds(i, chosen[-1]))  # type: ignore[attr-defined]
    return chosen


@pytest.mark.parametrize("gain", [0.75, 1.1])
def test_the_faster_way_is_found_in_noise(gain: float) -> None:
    rng = random.Random(1)

    def seconds(_: int, fetches: bool) -> float:
        spike = 3.0 if rng.random() < 0.05 else 1.0
        return 3e-3 * (gain if fetches else 1.0) * spike * rng.uniform(0.97, 1.03)

    chosen = fetching(native.FetchTrial(), 2000, seconds)[300:]
    right = sum(fetches is (gain < 1) for fetches in chosen) / len(chosen)
    assert right > 0.97


def test_it_follows_a_machine_that_changes() -> None:
    def seconds(i: int, fetches: bool) -> float:
        return 3e-3 * (0.8 if fetches is (i < 1000) else 1.0)

    chosen = fetching(native.FetchTrial(), 3000, seconds)
    assert sum(chosen[200:1000]) > 0.97 * 800
    assert sum(chosen[2000:]) < 0.03 * 1000


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_a_chain_whose_first_pass_is_slow_says_nothing(length: int) -> None:
    def seconds(i: int, _: bool) -> float:
        return 3e-4 if i % length == 0 else 1.5e-4

    chosen = fetching(native.FetchTrial(), 5000, seconds)
    changes = sum(a is not b for a, b in pairwise(chosen[1000:]))
    assert changes <= 2 * 4000 / 61 + 2
