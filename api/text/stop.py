"""Finding stop strings in text that arrives in pieces.

An Aho-Corasick automaton over the stop strings: after each character its state is the longest
suffix of the text that begins some stop string, and that suffix is exactly what must be held back.
Each character costs a few steps, however the text was cut and however long the stop strings are.

    text so far   ....................sto        stop strings: "stop it", "top"
                  released           |held       state = "sto"

Where several stop strings end at the same character the longest counts; otherwise the one that
ends first. Source: Aho and Corasick, Efficient string matching, 1975.
Exercised by `pytest tests/unit/text/test_stop.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True, eq=False)
class _Node:
    """A prefix of some stop string. `match` is the longest stop string that it ends with."""

    depth: int
    children: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = None
    match: str | None = None


def _build_automaton(stop_strings: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop_string in stop_strings:
        node = root
        for character in stop_string:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.match = stop_string
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, child in node.children.items():
            child.fallback = root if node is root else _advance(node.fallback or root, character)
            child.match = child.match or child.fallback.match
            queue.append(child)
    return root


def _advance(node: _Node, character: str) -> _Node:
    """The longest suffix of `node` + `character` that is a prefix of a stop string."""
    while character not in node.children:
        if node.fallback is None:
            return node
        node = node.fallback
    return node.children[character]


class StopMatcher:
    """Passes text through until a stop string is complete.

    `matched` is the stop string that was met, or None. Once it is set no more text comes out.
    Stop strings must not be empty.
    """

    def __init__(self, stop_strings: Sequence[str], *, include_match: bool = False) -> None:
        self._node = self._root = _build_automaton(stop_strings)
        self._include_match = include_match
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text; returns what can be released now."""
        if self.matched is not None:
            return ""
        pending = self._held + text
        for position in range(len(self._held), len(pending)):
            self._node = _advance(self._node, pending[position])
            if self._node.match is not None:
                return self._end(pending[: position + 1], self._node.match)
        num_released = len(pending) - self._node.depth
        self._held = pending[num_released:]
        return pending[:num_released]

    def finish(self) -> str:
        """The text has ended: returns what was held back for a match that never came."""
        held, self._held, self._node = self._held, "", self._root
        return held

    def _end(self, text: str, match: str) -> str:
        self.matched, self._held = match, ""
        return text if self._include_match else text[: len(text) - len(match)]
