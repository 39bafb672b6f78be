"""Which of the chosen tokens stand, and where an output ends."""

from __future__ import annotations

import pytest
from hasten.core.request import FinishReason
from hasten.core.verify import StopRule, num_kept


@pytest.mark.parametrize(
    ("chosen", "drafts", "kept"),
    [
        ([5], [], 1),
        ([5, 6, 7], [5, 6], 3),
        ([5, 6, 7], [5, 9], 2),
        ([5, 6, 7], [9, 6], 1),
        ([5, 5, 5], [5, 5], 3),
    ],
)
def test_drafts_stand_while_they_are_equal(chosen: list[int], drafts: list[int], kept: int) -> None:
    assert num_kept(chosen, drafts) == kept


@pytest.mark.parametrize(
    ("tokens", "before", "expected"),
    [
        ([1, 2], 0, (2, None)),
        ([1, 9, 2], 0, (2, FinishReason.STOP)),
        ([9], 3, (1, FinishReason.STOP)),
        ([1, 2, 3], 2, (2, FinishReason.LENGTH)),
        ([1, 9], 2, (2, FinishReason.STOP)),
        ([1, 2, 9], 2, (2, FinishReason.LENGTH)),
    ],
)
def test_an_output_ends_in_the_middle_of_a_step(
    tokens: list[int], before: int, expected: tuple[int, FinishReason | None]
) -> None:
    assert StopRule(frozenset({9}), max_tokens=4).cut(tokens, before) == expected
