"""What confidences have turned out to be worth: acceptance by proposer, position and request.

A guess of confidence c at position j of a draft is taken to be right (if those before it are) with

    probability = corrected(c * position[j] * request)

where each factor is right guesses / expected ones so far, old evidence fading. That of a position
is over all requests of a proposer, given their own factors, with a prior below 1. That of a request
is over all its positions, given theirs, with the first guesses of all requests as a prior. So
without evidence the proposer is nearly believed, a new request is like the others, and what is
learnt of a request's first guesses holds for its deeper ones too, which are seldom seen when those
fail.

Products that are right on average need not be right where they are high, and where rows are dear
only the surest of many guesses are verified, among which are the too sure ones. So what came of
guesses that seemed about as likely, in tenths, corrects the product.

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
REQUEST_FADE, REQUEST_PRIOR = 0.97, 2.0
"""What remains of evidence after one more step; how many expected guesses a prior weighs."""
FIRST_FACTOR = 0.85
"""What a proposer's confidences are taken to be worth before there is evidence."""
NUM_BELIEFS = 10
"""Tenths of probability, each with what guesses that seemed so likely have turned out to be."""
LEAST_EXPECTED = 1e-6
MOST = 0.99
"""No guess is believed more than this."""
USUAL_CONFIDENCE = 0.7
"""What a proposer that has not guessed yet is taken to say of each guess."""


class _Ratio:
    """Right over expected guesses; a prior of `mean` is the first evidence, and fades too."""

    __slots__ = ("_expected", "_fade", "_right", "factor")

    def __init__(self, fade: float, prior: float, mean: float = 1.0) -> None:
        self._fade = fade
        self._right, self._expected = prior * mean, prior
        self.factor = mean

    def observe(self, num_right: float, num_expected: float) -> None:
        self._right = self._right * self._fade + num_right
        self._expected = self._expected * self._fade + num_expected
        self.factor = self._right / max(self._expected, LEAST_EXPECTED)


class AcceptanceHistory:
    """The history of one proposer and of the requests it drafts for."""

    def __init__(self) -> None:
        self._first = _Ratio(PROPOSER_FADE, PROPOSER_PRIOR)
        self._positions = [
            _Ratio(PROPOSER_FADE, PROPOSER_PRIOR, FIRST_FACTOR) for _ in range(NUM_POSITIONS)
        ]
        self._confidences = [
            _Ratio(PROPOSER_FADE, PROPOSER_PRIOR, USUAL_CONFIDENCE) for _ in range(NUM_POSITIONS)
        ]
        self._beliefs = [_Ratio(PROPOSER_FADE, PROPOSER_PRIOR) for _ in range(NUM_BELIEFS + 1)]
        self._requests: dict[RequestId, _Ratio] = {}

    def expected(self, request_id: RequestId, depth: int, least: float = 0.0) -> list[float]:
        """The survivals of a draft that is not made yet, by what confidences have usually been."""
        usual = [confidence.factor for confidence in self._confidences]
        more = usual[-1:] * (depth - NUM_POSITIONS)
        return self.survivals(request_id, [*usual[:depth], *more], least)

    def survivals(
        self, request_id: RequestId, confidences: Sequence[float], least: float = 0.0
    ) -> list[float]:
        """The probabilities that a draft is right up to each of its positions, down to `least`."""
        request = self._request(request_id).factor
        factors = [position.factor * request for position in self._positions]
        survivals: list[float] = []
        survival = 1.0
        for i, confidence in enumerate(confidences):
            survival *= self._corrected(confidence * factors[i if i < NUM_POSITIONS else -1])
            if survival < least:
                break
            survivals.append(survival)
        return survivals

    def observe(
        self,
        request_id: RequestId,
        drafted: Sequence[int],
        confidences: Sequence[float],
        came: Sequence[int],
    ) -> None:
        """Learn from a draft and the tokens that came instead of it."""
        for i, confidence in enumerate(confidences[:NUM_POSITIONS]):
            self._confidences[i].observe(confidence, 1.0)
        request = self._request(request_id)
        num_right, num_expected = 0, 0.0
        for i, (guess, token_id) in enumerate(zip(drafted, came, strict=False)):
            is_right = guess == token_id
            position = self._position(i)
            self._note_belief(confidences[i] * position.factor * request.factor, is_right)
            num_right += is_right
            num_expected += confidences[i] * position.factor
            position.observe(is_right, min(confidences[i] * request.factor, MOST))
            if i == 0:
                self._first.observe(is_right, confidences[i])
            if not is_right:
                break
        request.observe(num_right, num_expected)

    def forget(self, request_id: RequestId) -> None:
        self._requests.pop(request_id, None)

    def _corrected(self, probability: float) -> float:
        probability = min(probability, MOST)
        return min(probability * self._beliefs[int(probability * NUM_BELIEFS)].factor, MOST)

    def _note_belief(self, probability: float, is_right: bool) -> None:
        probability = min(probability, MOST)
        self._beliefs[int(probability * NUM_BELIEFS)].observe(is_right, probability)

    def _position(self, idx: int) -> _Ratio:
        return self._positions[min(idx, NUM_POSITIONS - 1)]

    def _request(self, request_id: RequestId) -> _Ratio:
        ratio = self._requests.get(request_id)
        if ratio is None:
            ratio = _Ratio(REQUEST_FADE, REQUEST_PRIOR, self._first.factor)
            self._requests[request_id] = ratio
        return ratio
