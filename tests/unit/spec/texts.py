"""Requests whose future is known, and a proposer that is right as often as a test says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from hasten.core.params import GenerationParams, Speculative
from hasten.core.request import Request, RequestId
from hasten.spec.proposer import Draft

VOCAB_SIZE = 1000


def request_of(
    name: str, tokens: Sequence[int], salt: str = "", speculative: Speculative | None = None
) -> Request:
    params = GenerationParams(max_tokens=100, seed=0, speculative=speculative or Speculative())
    return Request(RequestId(name), name, tuple(tokens), params, 0, cache_extra=salt.encode())


def token_at(request_id: RequestId, position: int) -> int:
    """What the request says at a position."""
    return random.Random(f"{request_id} {position}").randrange(VOCAB_SIZE)


def advance(request: Request, drafts: Sequence[int]) -> int:
    """Append what a step gives a request: the right drafts and one token. Returns how many."""
    num_before = len(request.token_ids)
    for draft in (*drafts, None):
        token_id = token_at(request.request_id, len(request.token_ids))
        request.token_ids.append(token_id)
        if draft != token_id:
            break
    return len(request.token_ids) - num_before


@dataclass(slots=True)
class GuessingProposer:
    """Right with a probability of `acceptance` at each position; says that it is `confidence`."""

    acceptance: float
    confidence: float | None = None
    request_s: float = 0.0
    num_asked: int = 0
    forgotten: list[RequestId] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def propose(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        self.num_asked += sum(depth > 0 for depth in depths)
        return [
            self._draft(request, depth) for request, depth in zip(requests, depths, strict=True)
        ]

    def forget(self, request_id: RequestId) -> None:
        self.forgotten.append(request_id)

    def _draft(self, request: Request, depth: int) -> Draft:
        begin = len(request.token_ids)
        guesses = [
            token_at(request.request_id, begin + i) if self.rng.random() < self.acceptance else -1
            for i in range(depth)
        ]
        confidence = self.acceptance if self.confidence is None else self.confidence
        return Draft(guesses, [confidence] * depth)
