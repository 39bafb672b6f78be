"""The compiled parts against those in Python: token for token, bit for bit, as texts grow."""

from __future__ import annotations

import random
import runpy
import sys

import pytest
from hasten.core.request import RequestId
from hasten.spec import acceptance, compiled, drafting, text_index
from hasten.spec.proposer import NO_DRAFT, Draft
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("hasten.spec._native")

TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=60), min_size=1, max_size=4)
CHANCE = st.randoms(use_true_random=False)


def unpacked(draft: Draft) -> tuple[list[int], list[float]]:
    return list(draft.token_ids), list(draft.confidences)


def test_what_serves_is_compiled() -> None:
    for part in (compiled.TextIndex, compiled.AcceptanceHistory):
        assert part.__module__ == "hasten.spec._native"


def test_without_a_compiler_python_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hasten.spec._native", None)
    monkeypatch.delattr("hasten.spec._native")
    found = runpy.run_path(compiled.__file__)
    assert found["TextIndex"] is text_index.TextIndex
    assert found["draft_after"] is drafting.draft_after
    assert found["AcceptanceHistory"] is acceptance.AcceptanceHistory


@given(texts=TEXTS, chance=CHANCE, depth=st.integers(0, 16))
def test_drafts(texts: list[list[int]], chance: random.Random, depth: int) -> None:
    """Of texts that grow side by side, some in an older index too, and further there."""
    plain = text_index.TextIndex(), text_index.TextIndex()
    fast = compiled.TextIndex(), compiled.TextIndex()
    grown: list[list[int]] = [[] for _ in texts]
    for each in grown[::2]:
        assert plain[1].add(each) == fast[1].add(each)
    for each in grown:
        start = chance.choice((0, 0, 5))
        assert plain[0].add(each, start) == fast[0].add(each, start)
    while any(len(now) < len(text) for now, text in zip(grown, texts, strict=True)):
        idx = chance.randrange(len(texts))
        grown[idx] += texts[idx][len(grown[idx]) :][: chance.randint(1, 8)]
        for index in (plain[0], fast[0]):
            index.extend(idx)
        if idx % 2 == 0 and chance.random() < 0.5:
            for index in (plain[1], fast[1]):
                index.extend(idx // 2)
        assert [i.num_tokens for i in plain] == [i.num_tokens for i in fast]
        older = chance.random() < 0.5
        drafts = [
            draft_after(young, idx, depth, old if older else None)
            for draft_after, (young, old) in (
                (drafting.draft_after, plain),
                (compiled.draft_after, fast),
            )
        ]
        assert unpacked(drafts[0]) == unpacked(drafts[1])
        assert (drafts[0] is NO_DRAFT) == (drafts[1] is NO_DRAFT)


def test_long_texts_of_many_tokens() -> None:
    """Past several sizes of the table, with the largest token that is told apart."""
    rng = random.Random(2)
    text = [rng.choice((rng.randrange(50_000), 2**21 - 2, 7)) for _ in range(5000)]
    plain, fast = text_index.TextIndex(), compiled.TextIndex()
    grown: list[int] = []
    for index in (plain, fast):
        index.add(grown)
    for token in text:
        grown.append(token)
        for index in (plain, fast):
            index.extend(0)
        assert unpacked(drafting.draft_after(plain, 0, 8)) == unpacked(
            compiled.draft_after(fast, 0, 8)
        )


def test_a_text_that_is_not_there() -> None:
    index = compiled.TextIndex()
    with pytest.raises(IndexError):
        index.extend(0)
    with pytest.raises(IndexError):
        compiled.draft_after(index, 3, 1)


@given(chance=CHANCE)
def test_acceptance(chance: random.Random) -> None:
    plain, fast = acceptance.AcceptanceHistory(), compiled.AcceptanceHistory()
    names = [RequestId(name) for name in "abc"]
    for _ in range(60):
        name, least = chance.choice(names), chance.choice((0.0, 0.1))
        confidences = [chance.random() for _ in range(chance.randint(0, 7))]
        assert plain.survivals(name, confidences, least) == fast.survivals(name, confidences, least)
        depth = chance.randint(0, 9)
        assert plain.expected(name, depth, least) == fast.expected(name, depth, least)
        drafted = [chance.randrange(2) for _ in confidences]
        came = [chance.randrange(2) for _ in range(chance.randint(0, 9))]
        for history in (plain, fast):
            history.observe(name, drafted, confidences, came)
        if chance.random() < 0.05:
            for history in (plain, fast):
                history.forget(name)
