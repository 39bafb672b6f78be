from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hasten.evals.distribution import FullDistribution, TopDistribution
from hasten.evals.journal import Journal
from hasten.evals.memory import RememberingTarget
from hasten.evals.target import CannotMeasureError, Prompt, Scored

from tests.unit.evals.fakes import FakeTarget

PROMPT = Prompt((72, 105), max_tokens=5)
SCORED = Scored(tuple(b"Hello, world"), start=3)


@pytest.fixture(name="journal")
def _journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "answers") as journal:
        yield journal


def remembering(journal: Journal, target: FakeTarget | None) -> RememberingTarget:
    return RememberingTarget(FakeTarget().configuration, journal, target)


def test_asked_twice_computed_once(journal: Journal) -> None:
    fake = FakeTarget()
    target = remembering(journal, fake)
    first = target.continue_greedily([PROMPT]), target.score([SCORED])
    num_calls = fake.num_calls
    assert (target.continue_greedily([PROMPT]), target.score([SCORED])) == first
    assert fake.num_calls == num_calls


def test_only_what_is_new_is_computed_and_order_is_kept(journal: Journal) -> None:
    fake = FakeTarget()
    target = remembering(journal, fake)
    other = Prompt((1, 2, 3), max_tokens=4)
    target.continue_greedily([other])
    num_calls = fake.num_calls
    answers = target.continue_greedily([PROMPT, other, PROMPT])
    assert fake.num_calls <= num_calls + 2
    assert answers == FakeTarget().continue_greedily([PROMPT, other, PROMPT])


def test_a_stored_run_answers_what_was_measured_and_refuses_the_rest(journal: Journal) -> None:
    live = remembering(journal, FakeTarget())
    expected = live.score([SCORED])
    ids = live.encode("Hello")
    stored = remembering(journal, None)
    assert stored.score([SCORED]) == expected
    assert stored.encode("Hello") == ids
    with pytest.raises(CannotMeasureError, match="did not measure this"):
        stored.continue_greedily([PROMPT])
    with pytest.raises(CannotMeasureError, match="stored run"):
        stored.time_load([PROMPT], 1)


def test_distributions_are_whole_when_fresh_and_cut_when_stored(journal: Journal) -> None:
    live = remembering(journal, FakeTarget())
    whole = live.distribution(SCORED)
    assert isinstance(whole, FullDistribution)
    stored = remembering(journal, None).distribution(SCORED)
    assert isinstance(stored, TopDistribution)
    np.testing.assert_array_equal(stored.ids, whole.kept().ids)
    np.testing.assert_allclose(stored.token_logprobs, whole.token_logprobs, atol=1e-6)


def test_with_a_fresh_cache_everything_is_computed_again(journal: Journal) -> None:
    fake = FakeTarget()
    target = remembering(journal, fake)
    target.continue_greedily([PROMPT])
    num_calls = fake.num_calls
    target.continue_greedily([PROMPT], fresh_cache=True)
    assert fake.num_calls == num_calls + 1
