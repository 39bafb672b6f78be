"""One call of the speculator: who decodes, and the best guess for each so far.

Terms are those of `spec.proposer` and `spec.depth`. Exercised by
`pytest tests/unit/spec/test_speculator.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hasten.spec.depth import Candidate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.latency import StepShape
    from hasten.core.request import Request


class Guess(NamedTuple):
    """A draft with the survivals that its proposer's history gives it."""

    token_ids: Sequence[int]
    survivals: Sequence[float]


NO_GUESS = Guess((), ())


def worth_of(survivals: Sequence[float], line: float) -> float:
    """Expected tokens above what their positions cost, `line` each."""
    return sum([survival - line for survival in survivals if survival > line])


@dataclass(slots=True)
class Turn:
    """The requests of one call with their lengths and the deepest drafts that they may have."""

    requests: Sequence[Request]
    limits: Sequence[int]
    num_tokens: Sequence[int]
    beside: StepShape
    best: dict[int, tuple[float, Guess]] = field(default_factory=dict)

    def offer(self, idx: int, worth: float, guess: Guess) -> None:
        """Take the guess for request `idx` if it is the best so far."""
        if guess.token_ids and (idx not in self.best or worth > self.best[idx][0]):
            self.best[idx] = worth, guess

    def worth_at(self, idx: int) -> float:
        """What the best guess for request `idx` is worth."""
        return self.best[idx][0] if idx in self.best else 0.0

    def guesses(self) -> list[Guess]:
        return [
            self.best[idx][1] if idx in self.best else NO_GUESS for idx in range(len(self.requests))
        ]

    def candidates(self, survivals: Sequence[Sequence[float]]) -> list[Candidate]:
        """The requests, for the depth controller, with these survivals."""
        return [
            Candidate(request.request_id, count, each)
            for request, count, each in zip(self.requests, self.num_tokens, survivals, strict=True)
        ]
