"""One function call written as a JSON object, read as it comes.

    { "name": "f", "arguments": { ... } }
            name ^              ^ streamed from here, as written

Members may come in any order and others are skipped; arguments that come before the name wait for
it. An object without a name is no call: its text is content. Nothing but nesting and strings is
checked: a call that the model broke off, or off which it wandered, is passed on as far as it goes.
Exercised by `pytest tests/unit/text/test_tool_parsers.py`.
"""

from __future__ import annotations

import json

from hasten.api.text.tool_parsers.events import CallArguments, CallBegin, Content, Event

_SPACE = " \t\n\r"


class CallReader:
    """Push characters while not `done`; `failed` says that this is no object."""

    def __init__(self, argument_keys: tuple[str, ...] = ("arguments", "parameters")) -> None:
        self.done = False
        self.failed = False
        self._argument_keys = argument_keys
        self._raw: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key = ""
        self._value: list[str] = []
        self._is_key = True
        self._name: str | None = None
        self._waiting: list[str] = []
        self._has_arguments = False

    def push(self, character: str) -> list[Event]:
        """What this character lets show."""
        if self._name is None:
            self._raw.append(character)
        if self._depth == 0:
            return self._begin(character)
        if self._depth == 1 and not self._in_string:
            return self._between(character)
        return self._inside(character)

    def finish(self) -> list[Event]:
        """The text has ended, or goes on with something else."""
        if self.done:
            return []
        if self._name is None:
            return [Content("".join(self._raw))]
        return []

    def _begin(self, character: str) -> list[Event]:
        if character == "{":
            self._depth = 1
        elif character not in _SPACE:
            self.failed = True
        return []

    def _between(self, character: str) -> list[Event]:
        """Directly in the object: keys, simple values, and what divides them."""
        if character == ":" and self._is_key:
            self._key, self._value, self._is_key = _decoded(self._value), [], False
            return []
        if character in ",}":
            events = self._end_member()
            if character == "}":
                events += self._end()
            return events
        return self._inside(character)

    def _inside(self, character: str) -> list[Event]:
        """A character of a key or a value."""
        if not self._value and character in _SPACE:
            return []
        self._track(character)
        self._value.append(character)
        if self._is_key or self._key not in self._argument_keys or self._value[0] == '"':
            return []
        # The value itself is not needed any more, only that it has begun.
        del self._value[1:]
        return self._show_arguments(character)

    def _track(self, character: str) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1

    def _end_member(self) -> list[Event]:
        events: list[Event] = []
        if not self._is_key and self._key == "name" and self._name is None:
            events = self._take_name(_decoded(self._value))
        elif not self._is_key and self._key in self._argument_keys and self._value[:1] == ['"']:
            # Arguments as JSON in a string.
            events = self._show_arguments(_decoded(self._value))
        self._is_key, self._key, self._value = True, "", []
        return events

    def _take_name(self, name: str) -> list[Event]:
        waiting = "".join(self._waiting)
        self._name = name
        self._raw.clear()
        self._waiting.clear()
        return [CallBegin(name), CallArguments(waiting)]

    def _show_arguments(self, text: str) -> list[Event]:
        self._has_arguments = True
        if self._name is None:
            self._waiting.append(text)
            return []
        return [CallArguments(text)]

    def _end(self) -> list[Event]:
        self.done, self._depth = True, 0
        if self._name is None:
            return [Content("".join(self._raw))]
        return [] if self._has_arguments else [CallArguments("{}")]


def _decoded(value: list[str]) -> str:
    """A JSON string's text; anything else as it is written."""
    text = "".join(value).strip()
    try:
        decoded = json.loads(text)
    except ValueError:
        return text.strip('"')
    return decoded if isinstance(decoded, str) else text
