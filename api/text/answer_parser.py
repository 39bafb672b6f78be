"""A model's answer taken apart: thought, text, calls.

    text -> `reasoning` (thought | the rest) -> `tool_parsers` (text | calls)

Exercised by `pytest tests/unit/text/test_tool_parsers.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.api.text.tool_parsers.events import Content, joined

if TYPE_CHECKING:
    from hasten.api.text.tool_parsers.events import Event, TextParser


class AnswerParser:
    """One parser behind another; see `tool_parsers.events.TextParser`.

    `tools` gets what `reasoning` says is content. Either may be None: then nothing is looked for.
    """

    def __init__(self, reasoning: TextParser | None, tools: TextParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[Event]:
        """What this text lets show, without empty texts, joined."""
        events = [Content(text)] if self._reasoning is None else self._reasoning.push(text)
        return joined(self._behind(events))

    def finish(self) -> list[Event]:
        events = [] if self._reasoning is None else self._behind(self._reasoning.finish())
        return joined(events + ([] if self._tools is None else self._tools.finish()))

    def _behind(self, events: list[Event]) -> list[Event]:
        tools = self._tools
        if tools is None:
            return events
        found: list[Event] = []
        for event in joined(events):
            found += tools.push(event.text) if isinstance(event, Content) else [event]
        return found
