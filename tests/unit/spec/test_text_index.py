"""The index against a search that looks everywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hasten.spec.text_index import CHAINED_LEN, CONTEXT_LENS, MAX_MATCHES, TextIndex
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = (*CONTEXT_LENS, CHAINED_LEN, 2, 1)
TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=60), min_size=1, max_size=4)


def common_len(tokens: Sequence[int], place: int, end: Sequence[int]) -> int:
    """The longest of `LENGTHS` by which the context of `place` equals the end of a text."""
    for length in LENGTHS:
        if length <= min(place, len(end)) and tokens[place - length : place] == end[-length:]:
            return length
    return 0


def index_of(texts: Sequence[list[int]], rng: random.Random) -> tuple[TextIndex, list[list[int]]]:
    """Texts that grew in random pieces, side by side."""
    index = TextIndex()
    grown: list[list[int]] = [[] for _ in texts]
    ids = [index.add(text) for text in grown]
    while any(len(now) < len(text) for now, text in zip(grown, texts, strict=True)):
        idx = rng.randrange(len(texts))
        num_more = rng.randint(1, 8)
        grown[idx] += texts[idx][len(grown[idx]) : len(grown[idx]) + num_more]
        index.extend(ids[idx])
    return index, grown


@given(texts=TEXTS, end=st.lists(st.integers(0, 3), min_size=3, max_size=40), seed=st.integers())
def test_matches_are_real_and_none_is_missed(
    texts: list[list[int]], end: list[int], seed: int
) -> None:
    index, grown = index_of(texts, random.Random(seed))
    found = index.matches(end)
    lengths = [
        common_len(tokens, place, end)
        for tokens in grown
        for place in range(CHAINED_LEN, len(tokens))
    ]
    assert bool(found) == any(lengths)
    for match in found:
        assert match.length == common_len(match.tokens, match.place, end)
        assert match.place < len(match.tokens)
    chained = [length for length in lengths if length >= CHAINED_LEN]
    if chained and len(chained) <= MAX_MATCHES:
        assert max(match.length for match in found) == max(chained)


@given(texts=TEXTS, seed=st.integers())
def test_the_end_of_a_text_does_not_match_itself(texts: list[list[int]], seed: int) -> None:
    index, grown = index_of(texts, random.Random(seed))
    for text in grown:
        assert all(
            match.tokens is not text or match.place < len(text) for match in index.matches(text)
        )


def test_the_latest_match_comes_first() -> None:
    text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]
    index = TextIndex()
    index.add(text)
    assert [match.place for match in index.matches(text)] == [7, 3]


def test_texts_from_the_middle() -> None:
    text = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]
    index = TextIndex()
    index.add(text, start=4)
    assert [match.place for match in index.matches(text)] == [7]
    assert index.num_tokens == len(text) - 4 - CHAINED_LEN


def test_repetition_costs_no_more_than_other_text() -> None:
    """A match that is long enough ends the search, and the number of them is bounded."""
    text = [7] * 20_000
    index = TextIndex()
    index.add(text)
    assert len(index.matches(text)) == 1
    assert len(index.matches([1] * 40 + [7] * 4)) <= MAX_MATCHES
