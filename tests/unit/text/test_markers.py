"""Markers found, and no text lost but theirs."""

import pytest
from hasten.api.text.markers import EdgeTrimmer, MarkerFilter
from hypothesis import given, settings
from hypothesis import strategies as st


def filtered(text: str, markers: tuple[str, ...]) -> tuple[str, list[str]]:
    finder = MarkerFilter(markers)
    shown, found = "", []
    for character in text:
        released, marker = finder.push(character)
        shown += released
        if marker:
            shown += "|"
            found.append(marker)
    return shown + finder.finish(), found


@pytest.mark.parametrize(
    ("text", "shown", "found"),
    [
        ("a<ab>b", "a|b", ["<ab>"]),
        ("<<ab>", "<|", ["<ab>"]),
        ("<a<ab><", "<a|<", ["<ab>"]),
        ("[x][x", "|[x", ["[x]"]),
        ("", "", []),
    ],
)
def test_markers_are_taken_out(text: str, shown: str, found: list[str]) -> None:
    assert filtered(text, ("<ab>", "[x]")) == (shown, found)


@settings(deadline=None)
@given(st.text("<ab>", max_size=60))
def test_markers_are_those_that_a_search_finds(text: str) -> None:
    assert filtered(text, ("<ab>",))[0] == text.replace("<ab>", "|")


def test_edges_without_space() -> None:
    trimmer = EdgeTrimmer()
    assert [trimmer.push(text) for text in (" \n", " a ", " ", "b\n")] == ["", "a", "", "  b"]
    assert trimmer.finish() == "\n"
