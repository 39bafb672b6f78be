"""The two sides of a run, and what a block may use to compare them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hasten.evals.target import CannotMeasureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.rows import DataFolder
    from hasten.evals.target import Target


class Progress(Protocol):
    """Told how far a block is."""

    def advance(self, done: int, total: int) -> None: ...


class Silent:
    """Progress that nobody watches."""

    def advance(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """Baseline and candidate, the data, and what the user allowed.

    `author` wrote the answers to chats that both sides are asked about: the baseline itself, or,
    when two stored runs are compared, the baseline that both were measured against.
    """

    baseline: Target
    candidate: Target
    data: DataFolder
    author: Target
    progress: Progress = field(default_factory=Silent)
    allow_code: bool = False

    @property
    def both(self) -> Sequence[Target]:
        return self.baseline, self.candidate

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, by whichever side can tell."""
        for target in self.both:
            try:
                return target.decode(token_ids)
            except CannotMeasureError:
                continue
        return f"(tokens {', '.join(map(str, token_ids))})"

    @property
    def max_len(self) -> int:
        """What both sides can hold."""
        return min(self.baseline.max_len, self.candidate.max_len)
