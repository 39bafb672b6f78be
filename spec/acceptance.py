"""What confidences have turned out to be worth: acceptance by proposer, request and position.

A guess of confidence c at position j of a draft is taken to be right (if those before it are) with

    probability = c * proposer[j] * request[j]

where each factor is right guesses / expected ones so far, with a prior of 1 and old evidence
fading: the first over all requests of a proposer, the second over one of them. Without evidence the
proposer is believed, and a new request is like the others.

Guesses are compared with the text as it went on, whether they were verified or not, so there is
evidence on the first position of every draft even at depth 0.

Pure. Exercised by `pytest tests/unit/spec/test_acceptance.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.request import RequestId

NUM_POSITIONS = 4
"""Positions told apart; the last stands for all behind it."""
PROPOSER_FADE, PROPOSER_PRIOR = 0.998, 20.0
REQUEST_FADE, REQUEST_PRIOR = 0.97, 4.0
"""What remains of evidence after one more observation; how many expected guesses a prior weighs."""
HITS_FADE = 0.95
MOST = 0.99
"""No guess is believed more than this."""


class _Ratios:
    """Right over expected guesses, by position."""

    __slots__ = ("_expected", "_fade", "_prior", "_right", "factors")

    def __init__(self, fade: float, prior: float) -> None:
        self._fade, self._prior = fade, prior
        self._right = [0.0] * NUM_POSITIONS
        self._expected = [0.0] * NUM_POSITIONS
        self.factors = [1.0] * NUM_POSITIONS

    def observe(self, position: int, expected: float, *, right: bool) -> None:
        fade, prior = self._fade, self._prior
        self._right[position] = self._right[position] * fade + right
        self._expected[position] = self._expected[position] * fade + expected
        self.factors[position] = (self._right[position] + prior) / (
            self._expected[position] + prior
        )


class _RequestHistory:
    __slots__ = ("hit_rate", "ratios")

    def __init__(self) -> None:
        self.ratios = _Ratios(REQUEST_FADE, REQUEST_PRIOR)
        self.hit_rate = 1.0


class AcceptanceHistory:
    """The history of one proposer and of the requests it drafts for."""

    def __init__(self) -> None:
        self._proposer = _Ratios(PROPOSER_FADE, PROPOSER_PRIOR)
        self._requests: dict[RequestId, _RequestHistory] = {}

    def hit_rate(self, request_id: RequestId) -> float:
        """How often there was a first guess and it was right, lately; 1 for a new request."""
        history = self._requests.get(request_id)
        return 1.0 if history is None else history.hit_rate

    def survivals(self, request_id: RequestId, confidences: Sequence[float]) -> list[float]:
        """The probabilities that a draft is right up to each of its positions."""
        proposer = self._proposer.factors
        request = self._request(request_id).ratios.factors
        survivals = []
        survival = 1.0
        for i, confidence in enumerate(confidences):
            position = min(i, NUM_POSITIONS - 1)
            survival *= min(confidence * proposer[position] * request[position], MOST)
            survivals.append(survival)
        return survivals

    def observe(
        self,
        request_id: RequestId,
        drafted: Sequence[int],
        confidences: Sequence[float],
        came: Sequence[int],
    ) -> None:
        """Learn from a draft (or from there being none) and the tokens that came instead of it."""
        history = self._request(request_id)
        hit = bool(drafted) and drafted[0] == came[0]
        history.hit_rate = history.hit_rate * HITS_FADE + (1 - HITS_FADE) * hit
        for i, (guess, token_id) in enumerate(zip(drafted, came, strict=False)):
            right = guess == token_id
            position = min(i, NUM_POSITIONS - 1)
            expected = confidences[i] * self._proposer.factors[position]
            self._proposer.observe(position, confidences[i], right=right)
            history.ratios.observe(position, expected, right=right)
            if not right:
                return

    def forget(self, request_id: RequestId) -> None:
        self._requests.pop(request_id, None)

    def _request(self, request_id: RequestId) -> _RequestHistory:
        history = self._requests.get(request_id)
        if history is None:
            history = self._requests[request_id] = _RequestHistory()
        return history
