"""Messages, their events and errors, in the shape of Anthropic's Messages API.

    message_start                the message, still empty, with what its input counts
      ping
      content_block_start        a block: text, a thought or a call of a function
      content_block_delta ...    what it holds, step by step
      content_block_stop
    message_delta                why it ended, and what it counts
    message_stop

Exercised by `pytest tests/unit/api/test_anthropic.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from hasten.api.http.answer_blocks import Action, Blocks, Kind
from hasten.api.http.named_events import named_event
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hasten.api.http.answer_blocks import Block, Change
    from hasten.api.http.answers import Usage
    from hasten.api.http.errors import ApiError
    from hasten.api.text.tool_parsers.events import Event

_DELTAS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.THOUGHT: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class TextContent(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingContent(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Signatures prove to a provider that a thought is its own; there is nothing to prove here."""

    thinking: str
    signature: Literal[""] = ""


class CallContent(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Any


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Input found in the cache is counted apart from the other input."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message, whole or still empty."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextContent | ThinkingContent | CallContent]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a message ended."""

    stop_reason: str
    stop_sequence: str | None

    @classmethod
    def of(cls, finish_reason: str | None, stop_reason: str | int | None) -> Ending:
        """From what a chat says of it."""
        if finish_reason == "stop" and isinstance(stop_reason, str):
            return cls("stop_sequence", stop_reason)
        names = {"length": "max_tokens", "tool_calls": "tool_use"}
        return cls(names.get(finish_reason or "", "end_turn"), None)


@dataclass(slots=True)
class MessageWriter:
    """Writes one message."""

    message_id: str
    model: str
    blocks: Blocks = field(default_factory=Blocks)

    def body(self, ending: Ending | None, usage: Usage) -> Message:
        """The message as a whole; without an `ending`, so far."""
        return Message(
            id=self.message_id,
            model=self.model,
            content=[_content(block) for block in self.blocks.blocks],
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=usage_of(usage),
        )

    def begin(self, usage: Usage) -> Iterator[bytes]:
        """The events before the first block; `usage` knows the input."""
        yield named_event("message_start", {"message": self.body(None, usage)})
        yield named_event("ping", {})

    def take(self, events: Sequence[Event]) -> Iterator[bytes]:
        """What a step adds, as events."""
        return map(_event, self.blocks.take(events))

    def end(self, ending: Ending, usage: Usage) -> Iterator[bytes]:
        """The events after the last step."""
        yield from map(_event, self.blocks.finish())
        delta = {"stop_reason": ending.stop_reason, "stop_sequence": ending.stop_sequence}
        yield named_event("message_delta", {"delta": delta, "usage": usage_of(usage)})
        yield named_event("message_stop", {})


def _event(change: Change) -> bytes:
    block, place = change.block, {"index": change.block.idx}
    if change.action is Action.OPEN:
        return named_event("content_block_start", place | {"content_block": _content(block)})
    if change.action is Action.CLOSE:
        return named_event("content_block_stop", place)
    name, field_name = _DELTAS[block.kind]
    delta = {"type": name, field_name: change.text}
    return named_event("content_block_delta", place | {"delta": delta})


def _content(block: Block) -> TextContent | ThinkingContent | CallContent:
    if block.kind is Kind.TEXT:
        return TextContent(block.text)
    if block.kind is Kind.THOUGHT:
        return ThinkingContent(block.text)
    return CallContent(block.call_id, block.name, _arguments(block.text))


def _arguments(text: str) -> Any:
    """What a model wrote as arguments: an object, unless it was cut off or wrote nonsense."""
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


def usage_of(usage: Usage) -> MessageUsage:
    num_cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - num_cached,
        cache_read_input_tokens=num_cached,
        output_tokens=usage.completion_tokens,
    )


def error_body(error: ApiError) -> dict[str, Any]:
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    told = {"type": _ERROR_TYPES.get(error.status, kind), "message": str(error)}
    return {"type": "error", "error": told}


def error_response(error: ApiError) -> Response:
    return Response(
        msgspec.json.encode(error_body(error)),
        status_code=error.status,
        media_type="application/json",
        headers=error.headers,
    )


def error_event(error: ApiError) -> bytes:
    return named_event("error", error_body(error))
