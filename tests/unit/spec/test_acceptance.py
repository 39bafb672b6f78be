"""Confidences are corrected by what came of them."""

from __future__ import annotations

import random

import pytest
from hasten.core.request import RequestId
from hasten.spec.acceptance import FIRST_FACTOR, MOST, AcceptanceHistory

A, B = RequestId("a"), RequestId("b")


def teach(
    history: AcceptanceHistory,
    request_id: RequestId,
    acceptance: float,
    confidence: float,
    num_steps: int,
) -> None:
    rng = random.Random(3)
    for _ in range(num_steps):
        came = [int(rng.random() >= acceptance) for _ in range(5)]
        history.observe(request_id, [0] * 4, [confidence] * 4, came)


def test_a_proposer_is_nearly_believed_at_first() -> None:
    history = AcceptanceHistory()
    doubt = FIRST_FACTOR
    expected = [0.5 * doubt, 0.4 * doubt**2, 0.36 * doubt**3]
    assert history.survivals(A, [0.5, 0.8, 0.9]) == pytest.approx(expected)


@pytest.mark.parametrize("acceptance", [0.1, 0.5, 0.9])
def test_confidences_are_scaled_to_what_is_accepted(acceptance: float) -> None:
    history = AcceptanceHistory()
    teach(history, A, acceptance, 0.6, 400)
    survivals = history.survivals(A, [0.6] * 4)
    assert survivals[0] == pytest.approx(acceptance, abs=0.12)
    assert survivals[1] == pytest.approx(acceptance**2, abs=0.15)


def test_requests_differ_and_new_ones_are_like_the_others() -> None:
    history = AcceptanceHistory()
    for _ in range(20):
        teach(history, A, 0.9, 0.5, 10)
        teach(history, B, 0.1, 0.5, 10)
    likely, unlikely = (history.survivals(each, [0.5])[0] for each in (A, B))
    new = history.survivals(RequestId("new"), [0.5])[0]
    assert unlikely < 0.25 < new < 0.65 < likely


def test_failing_first_guesses_speak_against_deeper_ones() -> None:
    history = AcceptanceHistory()
    for _ in range(60):
        history.observe(A, [1, 1, 1], [0.8] * 3, [0])
    assert history.survivals(A, [0.8] * 3)[2] < 0.01


def test_nothing_is_certain() -> None:
    history = AcceptanceHistory()
    teach(history, A, 1.0, 0.5, 300)
    assert history.survivals(A, [0.99])[0] == MOST


def test_a_forgotten_request_is_new() -> None:
    history = AcceptanceHistory()
    teach(history, A, 0.0, 0.5, 50)
    assert history.survivals(A, [0.5])[0] < history.survivals(B, [0.5])[0] / 2
    history.forget(A)
    assert history.survivals(A, [0.5]) == history.survivals(B, [0.5])


def test_the_surest_of_many_guesses_are_not_believed_more_than_they_were_worth() -> None:
    """Confidences that say nothing: right half of the time, whatever they are."""
    rng, history = random.Random(5), AcceptanceHistory()
    chosen, believed = [], []
    for step in range(3000):
        confidence = rng.choice([0.3, 0.5, 0.7, 0.95])
        survival = history.survivals(A, [confidence])[0]
        is_right = rng.random() < 0.5
        if step > 500 and survival > 0.6:
            chosen.append(is_right)
            believed.append(survival)
        history.observe(A, [0], [confidence], [int(not is_right)])
    assert sum(believed) < 1.35 * sum(chosen) + 20
    assert history.survivals(A, [0.95])[0] == pytest.approx(0.5, abs=0.15)
