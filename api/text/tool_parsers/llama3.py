"""`{"name": ..., "parameters": {...}}` and nothing else, as Llama 3 writes calls.

Several calls are divided by semicolons or white space. A text that does not begin with an object
is content to its end. The token `<|python_tag|>` before a call is no text.
"""

from __future__ import annotations

from hasten.api.text.tool_parsers.events import Content, Event
from hasten.api.text.tool_parsers.json_call import CallReader

_BETWEEN = " \t\n\r;"


class Llama3Parser:
    """See `events.TextParser`."""

    markers: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._call: CallReader | None = None
        self._held = ""
        self._is_content = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for idx, character in enumerate(text):
            if self._is_content:
                events.append(Content(text[idx:]))
                break
            events += self._take(character)
        return events

    def finish(self) -> list[Event]:
        if self._call is not None:
            return self._call.finish()
        return []

    def _take(self, character: str) -> list[Event]:
        if self._call is None:
            return self._between(character)
        events = self._call.push(character)
        if self._call.done:
            self._call = None
            # An object that was no call: the model writes JSON for the user.
            self._is_content = any(isinstance(event, Content) for event in events)
        return events

    def _between(self, character: str) -> list[Event]:
        if character in _BETWEEN:
            self._held += character
            return []
        held, self._held = self._held, ""
        if character != "{":
            self._is_content = True
            return [Content(held + character)]
        self._call = CallReader()
        return self._call.push(character)
