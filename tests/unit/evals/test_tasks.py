from __future__ import annotations

from collections import Counter

import pytest
from hasten.evals.tasks.facts import facts_rows
from hasten.evals.tasks.synthetic import Kind, synthetic_rows


def test_facts_have_four_different_choices_and_golds_all_over() -> None:
    rows = facts_rows()
    assert len(rows) == 145
    assert all(len(set(row.choices)) == 4 for row in rows)
    golds = Counter(row.gold for row in rows)
    assert min(golds.values()) > 145 / 4 / 2
    assert all("{" not in row.query for row in rows)


@pytest.mark.parametrize("kind", ["needle", "copying", "arithmetic"])
def test_synthetic_items_depend_on_the_seed_alone(kind: Kind) -> None:
    rows = synthetic_rows(kind, 12, 6, seed=3)
    assert rows == synthetic_rows(kind, 12, 6, seed=3)
    assert rows != synthetic_rows(kind, 12, 6, seed=4)
    assert all(row.continuation.startswith(" ") for row in rows)


def test_needles_go_from_the_beginning_to_the_end() -> None:
    rows = synthetic_rows("needle", 5, 20, seed=1)
    places = [row.context.index("The secret number") / len(row.context) for row in rows]
    assert places == sorted(places)
    assert places[0] == 0.0
    assert places[-1] > 0.8
    assert all(row.continuation.strip() in row.context for row in rows)


def test_sums_are_right_and_copies_are_in_the_context() -> None:
    for row in synthetic_rows("arithmetic", 5, 3, seed=1):
        question = row.context.rsplit("\n", 1)[-1].removesuffix(" =")
        assert sum(int(part) for part in question.split(" + ")) == int(row.continuation)
    for row in synthetic_rows("copying", 5, 8, seed=1):
        assert row.context.rsplit("\n", 1)[-1] + row.continuation in row.context
