"""An answer as a sequence of blocks: thought, text, calls; each opened, filled and closed in turn.

The Responses and the Messages API both stream answers so; what they call things is theirs.
Exercised by `pytest tests/unit/api/test_responses.py tests/unit/api/test_anthropic.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hasten.api.http.chat_answer import new_call_id
from hasten.api.http.messages import CalledFunction, ChatMessage, ToolCall
from hasten.api.text.tool_parsers.events import CallBegin, Content, Reasoning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hasten.api.text.tool_parsers.events import Event


class Kind(enum.Enum):
    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """`text` is what has come of it: of a call its arguments, as JSON. Calls have id and name."""

    idx: int
    kind: Kind
    name: str = ""
    call_id: str = ""
    text: str = ""


class Action(enum.Enum):
    OPEN = enum.auto()
    MORE = enum.auto()
    CLOSE = enum.auto()


class Change(NamedTuple):
    """What happens to a block; `text` is what MORE adds."""

    action: Action
    block: Block
    text: str = ""


@dataclass(slots=True)
class Blocks:
    """The blocks of one answer, the last of them open until `finish`."""

    blocks: list[Block] = field(default_factory=list)

    def take(self, events: Sequence[Event]) -> Iterator[Change]:
        """What the events change, in order; empty texts change nothing."""
        for event in events:
            if isinstance(event, CallBegin):
                yield from self._open(Kind.CALL, event.name, new_call_id())
            elif event.text:
                kind = _KINDS.get(type(event), Kind.CALL)
                if not self.blocks or self.blocks[-1].kind is not kind:
                    yield from self._open(kind)
                self.blocks[-1].text += event.text
                yield Change(Action.MORE, self.blocks[-1], event.text)

    def finish(self) -> Iterator[Change]:
        """The end of the answer, which has at least one block."""
        if not self.blocks:
            yield from self._open(Kind.TEXT)
        yield Change(Action.CLOSE, self.blocks[-1])

    def message(self) -> ChatMessage:
        """The answer as a message that a conversation goes on from."""
        texts = [block.text for block in self.blocks if block.kind is Kind.TEXT]
        calls = [
            ToolCall(block.call_id, CalledFunction(block.name, block.text))
            for block in self.blocks
            if block.kind is Kind.CALL
        ]
        return ChatMessage(role="assistant", content="".join(texts), tool_calls=calls or None)

    def _open(self, kind: Kind, name: str = "", call_id: str = "") -> Iterator[Change]:
        if self.blocks:
            yield Change(Action.CLOSE, self.blocks[-1])
        self.blocks.append(Block(len(self.blocks), kind, name, call_id))
        yield Change(Action.OPEN, self.blocks[-1])


_KINDS: dict[type, Kind] = {Content: Kind.TEXT, Reasoning: Kind.THOUGHT}
