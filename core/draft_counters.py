"""What became of drafts: how deep they were, and how far they were right.

Pure. Exercised by `pytest tests/unit/core/test_draft_counters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_DEPTH = 16
"""The deepest draft there is."""


@dataclass(slots=True)
class DraftCounters:
    """Counts over all steps of all requests that decoded.

    `depths[d]` is how often d drafts were verified at once, and `accepted[j]` how often the one at
    position j was right and kept.
    """

    depths: list[int] = field(default_factory=lambda: [0] * (MAX_DEPTH + 1))
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)

    def count(self, num_drafts: int, num_accepted: int) -> None:
        self.depths[num_drafts] += 1
        for position in range(num_accepted):
            self.accepted[position] += 1

    @property
    def num_drafted(self) -> int:
        return sum(depth * count for depth, count in enumerate(self.depths))

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted)
