"""Finding fixed markers in text that comes character by character.

What may be the beginning of a marker is held back until it is one, or is not. Markers are short,
so each character costs a bounded number of comparisons.
Exercised by `pytest tests/unit/text/test_markers.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class MarkerFilter:
    """Passes text through without its markers. None may be the beginning of another."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._firsts = {marker[0] for marker in markers}
        self._held = ""

    def end_of_plain(self, text: str, begin: int) -> int:
        """Up to where `text`, from `begin` on, passes unchanged: it need not be pushed."""
        if self._held:
            return begin
        found = (text.find(first, begin) for first in self._firsts)
        return min((idx for idx in found if idx >= 0), default=len(text))

    def push(self, character: str) -> tuple[str, str]:
        """Take one character: the text that is no marker's, and the marker that it completes."""
        held, released = self._held + character, ""
        while held and not any(marker.startswith(held) for marker in self._markers):
            released, held = released + held[0], held[1:]
        if held in self._markers:
            self._held = ""
            return released, held
        self._held = held
        return released, ""

    def finish(self) -> str:
        """What was held back for a marker that never came."""
        held, self._held = self._held, ""
        return held


class EdgeTrimmer:
    """Text without white space at its end, and unless it has `begun`, at its beginning."""

    def __init__(self, *, begun: bool = False) -> None:
        self._begun = begun
        self._space = ""

    def push(self, text: str) -> str:
        """What can be shown now: white space waits for what comes behind it."""
        if not self._begun:
            text = text.lstrip()
        if not text:
            return ""
        kept = text.rstrip()
        if not kept:
            self._space += text
            return ""
        shown = self._space + kept
        self._begun, self._space = True, text[len(kept) :]
        return shown

    def finish(self) -> str:
        """The white space at the end, for a text whose end is to be as it was written."""
        space, self._space = self._space, ""
        return space
