"""One sample of a chat: from its text to what the message holds, in deltas or whole.

Exercised by `pytest tests/unit/api/test_tools.py`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from hasten.api.http.answers import (
    CallPart,
    ChatAnswer,
    ChatDelta,
    FunctionCall,
    FunctionPart,
    ToolCall,
)
from hasten.api.text.tool_parsers.events import CallArguments, CallBegin, Content, Reasoning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.text.answer_plan import AnswerPlan
    from hasten.api.text.sample_text import SampleDelta
    from hasten.api.text.tool_parsers.events import Event


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What one step lets a client see of a message. `finish_reason` is as OpenAI's table says."""

    events: Sequence[Event]
    finish_reason: str | None

    def text(self, kind: type[Content | Reasoning]) -> str:
        return "".join(event.text for event in self.events if isinstance(event, kind))


class AnswerReader:
    """Reads the deltas of one sample by the plan of its request."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._parser = plan.parser()

    def read(self, delta: SampleDelta) -> AnswerDelta:
        if self._parser is None:
            return AnswerDelta([Content(delta.text)] if delta.text else [], delta.finish_reason)
        events = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        reason = self._plan.finish_reason(delta.finish_reason, self._parser.num_calls)
        return AnswerDelta(events, reason)


class DeltaWriter:
    """Makes the deltas of one streamed message."""

    def __init__(self) -> None:
        self._has_begun = False
        self._num_calls = 0

    def write(self, delta: AnswerDelta) -> ChatDelta:
        content, reasoning = delta.text(Content), delta.text(Reasoning)
        calls = [part for event in delta.events if (part := self._part(event)) is not None]
        is_first, self._has_begun = not self._has_begun, True
        # The first names the role, and has content even if it is not known yet what there will be.
        is_bare = is_first and not reasoning and not calls
        return ChatDelta(
            role="assistant" if is_first else None,
            content=content if content or is_bare else None,
            reasoning_content=reasoning or None,
            tool_calls=calls or None,
        )

    def _part(self, event: Event) -> CallPart | None:
        if isinstance(event, CallBegin):
            self._num_calls += 1
            function = FunctionPart(name=event.name, arguments="")
            return CallPart(self._num_calls - 1, function, id=new_call_id(), type="function")
        if isinstance(event, CallArguments):
            return CallPart(self._num_calls - 1, FunctionPart(arguments=event.text))
        return None


def whole_message(deltas: Sequence[AnswerDelta]) -> ChatAnswer:
    """The message that the deltas, joined, make."""
    events = [event for delta in deltas for event in delta.events]
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = _calls(events)
    return ChatAnswer(
        role="assistant",
        content=None if calls and not content else content,
        reasoning_content=reasoning or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


def _calls(events: Sequence[Event]) -> list[ToolCall]:
    found: list[tuple[str, list[str]]] = []
    for event in events:
        if isinstance(event, CallBegin):
            found.append((event.name, []))
        elif isinstance(event, CallArguments):
            found[-1][1].append(event.text)
    return [ToolCall(new_call_id(), FunctionCall(name, "".join(parts))) for name, parts in found]
