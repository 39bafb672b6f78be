"""Drafts are counted as they were verified."""

from __future__ import annotations

from hasten.core.draft_counters import DraftCounters


def test_depths_and_positions() -> None:
    counters = DraftCounters()
    for num_drafts, num_accepted in ((0, 0), (3, 1), (3, 3), (16, 2)):
        counters.count(num_drafts, num_accepted)
    assert counters.depths[0] == counters.depths[16] == 1
    assert counters.depths[3] == 2
    assert counters.accepted[:4] == [3, 2, 1, 0]
    assert (counters.num_drafted, counters.num_accepted) == (22, 6)
