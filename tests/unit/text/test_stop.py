from itertools import pairwise

import pytest
from hasten.api.text.stop import StopMatcher
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.timing import assert_linear

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)
TEXT = st.text("abc", max_size=40)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The slow and obvious way: the first position at which some stop string ends."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(borders)]


def viable(held: str, stops: list[str]) -> bool:
    return any(stop.startswith(held) and stop != held for stop in stops)


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 1000), max_size=20))
def test_every_cut_gives_what_the_whole_text_gives(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    released = "".join(matcher.push(piece) for piece in pieces_of(text, cuts))
    released += matcher.finish()
    assert (released, matcher.matched) == expected(text, stops)


@given(text=TEXT, stops=STOPS)
def test_only_viable_prefixes_are_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = ""
    for position, character in enumerate(text):
        released += matcher.push(character)
        if matcher.matched is not None:
            return
        held = text[len(released) : position + 1]
        assert not held or viable(held, stops)
        # Nothing that could still become a stop string has been let go.
        for length in range(len(held) + 1, position + 2):
            assert not viable(text[position + 1 - length : position + 1], stops)


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 1000), max_size=20))
def test_the_match_can_be_included(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops, include_match=True)
    released = "".join(matcher.push(piece) for piece in pieces_of(text, cuts))
    before, match = expected(text, stops)
    assert released + matcher.finish() == before + (match or "")


@pytest.mark.parametrize("cut", range(12))
def test_no_character_of_a_stop_string_is_released(cut: int) -> None:
    text = "so\nUser: and"
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push(text[:cut]) + matcher.push(text[cut:]) == "so"
    assert matcher.matched == "\nUser:"
    assert matcher.push("more") == ""


def test_no_stop_strings_hold_nothing_back() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == "anything"
    assert matcher.finish() == ""


def test_long_stop_strings_cost_linear_time() -> None:
    def held_at_the_end(num_pieces: int) -> int:
        matcher = StopMatcher(["a" * 1000 + "b", "ab" * 500, "aab"])
        released = "".join(matcher.push("a" * 7) for _ in range(num_pieces))
        held = matcher.finish()
        assert len(released) + len(held) == 7 * num_pieces
        return len(held)

    assert held_at_the_end(1000) == 1000
    assert_linear(held_at_the_end, 400)
