"""`[TOOL_CALLS]` and what follows it, as Mistral's models write calls, older and newer ones.

    [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]
    [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}         (or without [ARGS])

The markers are special tokens, so they have to be shown to the parser.
"""

from __future__ import annotations

from hasten.api.text.markers import EdgeTrimmer, MarkerFilter
from hasten.api.text.tool_parsers.events import CallArguments, CallBegin, Content, Event
from hasten.api.text.tool_parsers.json_call import CallReader

CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_SPACE = " \t\n\r"


class MistralParser:
    """See `events.TextParser`."""

    markers: tuple[str, ...] = (CALLS, ARGS)

    def __init__(self) -> None:
        self._filter = MarkerFilter((CALLS, ARGS))
        self._content = EdgeTrimmer(begun=True)
        self._call: CallReader | None = None
        self._name: list[str] = []
        self._state = self._outside

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            events += self._filtered(*self._filter.push(character))
        return events

    def finish(self) -> list[Event]:
        events = self._filtered(self._filter.finish(), "")
        if self._call is not None:
            events += self._call.finish()
        if self._state == self._outside:
            events.append(Content(self._content.finish()))
        return events

    def _filtered(self, text: str, marker: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            events += self._state(character)
        if marker == CALLS:
            self._name, self._call, self._state = [], None, self._behind_marker
        elif marker == ARGS:
            events += self._begin_arguments()
        return events

    def _outside(self, character: str) -> list[Event]:
        return [Content(self._content.push(character))]

    def _behind_marker(self, character: str) -> list[Event]:
        """A list of calls begins with a bracket, a single one with its name."""
        if character in _SPACE:
            return []
        self._state = self._in_list if character == "[" else self._in_name
        return [] if character == "[" else self._in_name(character)

    def _in_list(self, character: str) -> list[Event]:
        if self._call is None:
            if character == "]":
                self._state, self._content = self._outside, EdgeTrimmer()
            if character != "{":
                return []
            self._call = CallReader()
        events = self._call.push(character)
        if self._call.done:
            self._call = None
        return events

    def _in_name(self, character: str) -> list[Event]:
        if character == "{":
            return self._begin_arguments() + self._state(character)
        self._name.append(character)
        return []

    def _begin_arguments(self) -> list[Event]:
        self._state = self._in_arguments
        return [CallBegin("".join(self._name).strip())]

    def _in_arguments(self, character: str) -> list[Event]:
        return [CallArguments(character)]
