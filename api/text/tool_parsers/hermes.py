"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write calls.

White space beside calls is nobody's; other text is content.
"""

from __future__ import annotations

from hasten.api.text.markers import EdgeTrimmer, MarkerFilter
from hasten.api.text.tool_parsers.events import Content, Event
from hasten.api.text.tool_parsers.json_call import CallReader

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """See `events.TextParser`."""

    markers: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._opening = MarkerFilter((OPEN,))
        self._closing = MarkerFilter((CLOSE,))
        self._content = EdgeTrimmer(begun=True)
        self._call: CallReader | None = None

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        position = 0
        while position < len(text):
            if self._call is None:
                end = self._opening.end_of_plain(text, position)
                events += self._show(text[position:end])
                position = end
            if position < len(text):
                character = text[position]
                take = self._outside if self._call is None else self._inside
                events += take(character)
                position += 1
        return events

    def finish(self) -> list[Event]:
        if self._call is None:
            events = self._show(self._opening.finish())
            return [*events, Content(self._content.finish())]
        events = self._read(self._closing.finish())
        return events + self._call.finish()

    def _outside(self, character: str) -> list[Event]:
        text, marker = self._opening.push(character)
        events = self._show(text)
        if marker:
            self._call = CallReader()
        return events

    def _show(self, text: str) -> list[Event]:
        return [Content(self._content.push(text))]

    def _inside(self, character: str) -> list[Event]:
        text, marker = self._closing.push(character)
        events = self._read(text)
        if marker and self._call is not None:
            events += self._call.finish()
            self._call, self._content = None, EdgeTrimmer()
        return events

    def _read(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            if self._call is not None and not self._call.done:
                events += self._call.push(character)
        return events
