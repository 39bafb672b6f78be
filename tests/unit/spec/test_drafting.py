"""Drafts from matches: the longest are heard, the majority wins, periods go on."""

from __future__ import annotations

from hasten.spec.drafting import WORTH, WORTH_OF_LONGER, draft_from
from hasten.spec.proposer import NO_DRAFT
from hasten.spec.text_index import Match, TextIndex


def test_nothing_to_draft() -> None:
    assert draft_from([], [1], 4) is NO_DRAFT
    assert draft_from([Match([1, 2], 1, 1)], [1], 0) is NO_DRAFT


def test_one_match_is_copied() -> None:
    draft = draft_from([Match([1, 2, 3, 4, 5, 6], 3, 3)], [9, 1, 2, 3], 8)
    assert draft.token_ids == [4, 5, 6]
    assert list(draft.confidences) == list(WORTH[3:6])


def test_confidence_grows_with_the_context() -> None:
    draft = draft_from([Match(list(range(100)), 40, 12)], [1], 16)
    assert list(draft.confidences) == sorted(draft.confidences)
    assert draft.confidences[-1] == WORTH_OF_LONGER


def test_shorter_matches_are_not_heard() -> None:
    matches = [Match([1, 2, 3, 9], 3, 3), Match([0, 1, 2, 3, 4], 4, 4), Match([1, 2, 3, 9], 3, 3)]
    assert draft_from(matches, [1], 1).token_ids == [4]


def test_the_majority_goes_on_alone() -> None:
    matches = [
        Match([1, 2, 3, 7, 7], 3, 3),
        Match([1, 2, 3, 4, 5, 6], 3, 3),
        Match([1, 2, 3, 4, 8], 3, 3),
    ]
    draft = draft_from(matches, [1], 3)
    assert draft.token_ids == [4, 5, 6]  # 4 by two of three; of those the first wins the tie
    assert draft.confidences[0] == WORTH[3] * 2 / 3
    assert draft.confidences[1] == WORTH[4] * 1 / 2
    assert draft.confidences[2] == WORTH[5]


def test_a_period_is_repeated_for_as_long_as_asked() -> None:
    text = [9, 9, 9, 9, 1, 2, 3, 1, 2, 3, 1, 2, 3]
    index = TextIndex()
    index.add(text)
    assert draft_from(index.matches(text), text, 7).token_ids == [1, 2, 3, 1, 2, 3, 1]
