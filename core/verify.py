"""From what the model chose to what a request keeps: verified drafts and the end of its output.

The model's choice at each drafted position is the token it would have chosen without the draft
(see `kernels.ops.Sample`), so a draft is right exactly when it equals the choice before it:

    drafts          a  b  c
    chosen     a  b  x  .          rows behind: accepted text, +a, +ab, +abc
    kept       a  b  x             two drafts and the bonus token

Pure. Exercised by `pytest tests/unit/core/test_verify.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.core.request import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence


def num_kept(chosen: Sequence[int], drafts: Sequence[int]) -> int:
    """How many of `chosen` (one more than `drafts`) stand: those behind a right prefix."""
    kept = 1
    for draft, choice in zip(drafts, chosen, strict=False):
        if draft != choice:
            break
        kept += 1
    return kept


@dataclass(frozen=True, slots=True)
class StopRule:
    """When an output ends: at a terminal token, or at `max_tokens`."""

    terminal_ids: frozenset[int]
    max_tokens: int

    def cut(self, tokens: Sequence[int], num_output_tokens: int) -> tuple[int, FinishReason | None]:
        """How many of the new `tokens` belong to the output, and why it ends there if it does.

        `num_output_tokens` were there before. Terminal tokens below `min_tokens` cannot occur:
        they are forbidden when the token is chosen.
        """
        for i, token_id in enumerate(tokens, start=1):
            if token_id in self.terminal_ids:
                return i, FinishReason.STOP
            if num_output_tokens + i >= self.max_tokens:
                return i, FinishReason.LENGTH
        return len(tokens), None
