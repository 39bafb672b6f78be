"""`<think>...</think>` before an answer: what the model thought, apart from what it says.

Thinking begins with the tag at the beginning of the text, or at once when the prompt ended with it.
Text without a closing tag is all thought. White space around the tags is nobody's.
Exercised by `pytest tests/unit/text/test_reasoning.py`.
"""

from __future__ import annotations

from hasten.api.text.markers import EdgeTrimmer, MarkerFilter
from hasten.api.text.tool_parsers.events import Content, Event, Reasoning

OPEN, CLOSE = "<think>", "</think>"


def opens_reasoning(prompt: str) -> bool:
    """Whether the answer to a prompt begins in the middle of a thought."""
    return prompt.rstrip().endswith(OPEN)


class ReasoningParser:
    """Splits a text; see `tool_parsers.events.TextParser`."""

    markers: tuple[str, ...] = ()

    def __init__(self, *, begun: bool = False) -> None:
        self._opening = MarkerFilter((OPEN,))
        self._closing = MarkerFilter((CLOSE,))
        self._thought = EdgeTrimmer()
        self._before: list[str] = []
        self._take = self._think if begun else self._begin

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for idx, character in enumerate(text):
            if self._take == self._say:
                events.append(Content(text[idx:]))
                break
            events += self._take(character)
        return events

    def finish(self) -> list[Event]:
        if self._take == self._think:
            return [Reasoning(self._thought.push(self._closing.finish()))]
        return [Content("".join((*self._before, self._opening.finish())))]

    def _begin(self, character: str) -> list[Event]:
        """At the beginning, where nothing but white space may come before thought."""
        text, marker = self._opening.push(character)
        self._before.append(text)
        if marker:
            self._before.clear()
            self._take = self._think
        elif text.strip():
            text = "".join(self._before)
            self._before.clear()
            self._take = self._say
            return [Content(text)]
        return []

    def _think(self, character: str) -> list[Event]:
        text, marker = self._closing.push(character)
        if marker:
            self._take = self._wait_for_content
        return [Reasoning(self._thought.push(text))]

    def _wait_for_content(self, character: str) -> list[Event]:
        if character.isspace():
            return []
        self._take = self._say
        return self._say(character)

    def _say(self, character: str) -> list[Event]:
        return [Content(character)]
