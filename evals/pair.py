"""The two sides of a run, and what a block may use to compare them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

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
    """Baseline and candidate, the data, and what the user allowed."""

    baseline: Target
    candidate: Target
    data: DataFolder
    progress: Progress = field(default_factory=Silent)
    allow_code: bool = False

    @property
    def both(self) -> Sequence[Target]:
        return self.baseline, self.candidate

    @property
    def max_len(self) -> int:
        """What both sides can hold."""
        return min(self.baseline.max_len, self.candidate.max_len)
