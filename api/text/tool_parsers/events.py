"""What a parser finds in a model's text, in the order in which it was written."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple, Protocol


class Content(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """What the model thought before it answered."""

    text: str


class CallBegin(NamedTuple):
    """A call of a function begins; its arguments follow."""

    name: str


class CallArguments(NamedTuple):
    """More of the arguments of the last call: JSON, as the model wrote it."""

    text: str


Event = Content | Reasoning | CallBegin | CallArguments


class TextParser(Protocol):
    """Reads a text that comes in pieces.

    Events depend on the text and not on how it was cut: texts of one kind that follow one another,
    joined, are always the same.
    """

    markers: tuple[str, ...]
    """Special tokens that it has to see."""

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """The text has ended: what was held back for something that never came."""
        ...


def joined(events: list[Event]) -> list[Event]:
    """Texts of one kind that follow one another made into one; those without text left out."""
    result: list[Event] = []
    kept = (event for event in events if event[0] or isinstance(event, CallBegin))
    for kind, group in groupby(kept, type):
        if kind is CallBegin:
            result += group
        else:
            result.append(kind("".join([event[0] for event in group])))
    return result
