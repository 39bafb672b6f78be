"""Calls that a grammar forced: the text is nothing but calls, in the form that the grammar gives.

required     [{"name": "f", "parameters": {...}}, ...]
by name      {...}                                          the arguments alone
"""

from __future__ import annotations

from hasten.api.text.tool_parsers.events import CallArguments, CallBegin, Event
from hasten.api.text.tool_parsers.json_call import CallReader


class RequiredParser:
    """A JSON list of calls."""

    markers: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._call: CallReader | None = None

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            if self._call is None and character == "{":
                self._call = CallReader()
            if self._call is not None:
                events += self._call.push(character)
                self._call = None if self._call.done else self._call
        return events

    def finish(self) -> list[Event]:
        return [] if self._call is None else self._call.finish()


class NamedParser:
    """The arguments of one function."""

    markers: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self._begin: list[Event] = [CallBegin(name)]

    def push(self, text: str) -> list[Event]:
        begin, self._begin = self._begin, []
        return [*begin, CallArguments(text)]

    def finish(self) -> list[Event]:
        return []
