"""Response objects, and the events that build one up: OpenAI's Responses API, streamed or not.

    response.created, response.in_progress
      response.output_item.added          an item: a message, a thought or a call of a function
        response.content_part.added       of messages and thoughts: their one part
          response.*.delta ...            its text, step by step
          response.*.done
        response.content_part.done
      response.output_item.done
    response.completed or response.incomplete

Each event is numbered, and the last one holds what an answer that is not streamed is.
Exercised by `pytest tests/unit/api/test_responses.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hasten.api.http.answer_blocks import Action, Blocks, Kind
from hasten.api.http.named_events import named_event
from hasten.api.http.responses_objects import (
    CallItem,
    IncompleteDetails,
    InputDetails,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    ResponseUsage,
    TextFormat,
)
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hasten.api.http.answer_blocks import Block, Change
    from hasten.api.http.answers import ChatToken, Usage
    from hasten.api.http.errors import ApiError
    from hasten.api.http.responses_objects import Item, Part
    from hasten.api.http.responses_request import ResponsesRequest
    from hasten.api.params import SamplingParams
    from hasten.api.text.tool_parsers.events import Event

_DELTAS = {
    Kind.TEXT: "response.output_text",
    Kind.THOUGHT: "response.reasoning_text",
    Kind.CALL: "response.function_call_arguments",
}
Status = Literal["in_progress", "completed", "incomplete"]
_PREFIXES = {Kind.TEXT: "msg", Kind.THOUGHT: "rs", Kind.CALL: "fc"}


@dataclass(slots=True)
class ResponseWriter:
    """Writes one response. `token` makes the ids of its items; `logprobs` are of its texts."""

    request: ResponsesRequest
    params: SamplingParams
    token: str
    model: str
    created_at: int
    blocks: Blocks = field(default_factory=Blocks)
    logprobs: dict[int, list[ChatToken]] = field(default_factory=dict)
    _waiting: list[ChatToken] = field(default_factory=list)
    _num_events: int = 0

    @property
    def response_id(self) -> str:
        return f"resp_{self.token}"

    def take(self, events: Sequence[Event], logprobs: Sequence[ChatToken]) -> Iterator[bytes]:
        """What a step adds, as events."""
        self._waiting += logprobs
        for change in self.blocks.take(events):
            yield from self._change(change)

    def finish(self) -> Iterator[bytes]:
        """The answer has ended: the events of what was open."""
        for change in self.blocks.finish():
            yield from self._change(change)

    def begin(self) -> Iterator[bytes]:
        """The events before the first item."""
        body = self.body("in_progress", None)
        yield self._event("response.created", response=body)
        yield self._event("response.in_progress", response=body)

    def end(self, status: Status, usage: Usage) -> bytes:
        """The last event."""
        return self._event(f"response.{status}", response=self.body(status, usage))

    def error(self, error: ApiError) -> bytes:
        """The event of a response that breaks off."""
        return self._event("error", code=error.code, message=str(error), param=error.param)

    def body(self, status: Status, usage: Usage | None) -> ResponseObject:
        """The response as a whole, so far."""
        request, params = self.request, self.params
        is_cut = status == "incomplete"
        return ResponseObject(
            id=self.response_id,
            created_at=self.created_at,
            status=status,
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            model=self.model,
            output=[self._item(block, status) for block in self.blocks.blocks],
            parallel_tool_calls=request.parallel_tool_calls is not False,
            previous_response_id=request.previous_response_id,
            store=request.store,
            temperature=params.temperature,
            text=TextFormat((request.text and request.text.format) or {"type": "text"}),
            tool_choice=request.tool_choice or "auto",
            tools=request.tools or [],
            top_logprobs=request.top_logprobs or 0,
            top_p=params.top_p,
            usage=None if usage is None else _usage(usage),
            user=request.user,
        )

    def _change(self, change: Change) -> Iterator[bytes]:
        block = change.block
        if change.action is Action.OPEN:
            item = self._item(block, "in_progress")
            if not isinstance(item, CallItem):
                item = replace(item, content=[])
            yield self._event("response.output_item.added", output_index=block.idx, item=item)
            if block.kind is not Kind.CALL:
                part = self._part(block)
                yield self._block_event(block, "response.content_part.added", part=part)
        elif change.action is Action.MORE:
            extra = self._logprobs_with(block)
            name = f"{_DELTAS[block.kind]}.delta"
            yield self._block_event(block, name, delta=change.text, **extra)
        else:
            yield from self._close(block)

    def _close(self, block: Block) -> Iterator[bytes]:
        self._logprobs_with(block)
        done = f"{_DELTAS[block.kind]}.done"
        if block.kind is Kind.CALL:
            yield self._block_event(block, done, name=block.name, arguments=block.text)
        else:
            part = self._part(block)
            extra = {"logprobs": part.logprobs} if isinstance(part, OutputText) else {}
            yield self._block_event(block, done, text=block.text, **extra)
            yield self._block_event(block, "response.content_part.done", part=part)
        item = self._item(block, "completed")
        yield self._event("response.output_item.done", output_index=block.idx, item=item)

    def _logprobs_with(self, block: Block) -> dict[str, Any]:
        """What an event of a text brings: log-probabilities of tokens since the last such event."""
        if block.kind is not Kind.TEXT:
            return {}
        brought, self._waiting = self._waiting, []
        self.logprobs.setdefault(block.idx, []).extend(brought)
        return {"logprobs": brought}

    def _item(self, block: Block, status: Status) -> Item:
        item_id = self._item_id(block)
        if block.kind is Kind.CALL:
            return CallItem(
                id=item_id,
                status=status,
                call_id=block.call_id,
                name=block.name,
                arguments=block.text,
            )
        part = self._part(block)
        if isinstance(part, ReasoningText):
            return ReasoningItem(id=item_id, content=[part])
        return MessageItem(id=item_id, status=status, content=[part])

    def _part(self, block: Block) -> Part:
        if block.kind is Kind.THOUGHT:
            return ReasoningText(text=block.text)
        return OutputText(logprobs=self.logprobs.get(block.idx, []), text=block.text)

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self.token}_{block.idx}"

    def _block_event(self, block: Block, event_name: str, **data: Any) -> bytes:
        place = {"item_id": self._item_id(block), "output_index": block.idx}
        if block.kind is not Kind.CALL:
            place["content_index"] = 0
        return self._event(event_name, **place, **data)

    def _event(self, event_name: str, **data: Any) -> bytes:
        self._num_events += 1
        return named_event(event_name, {"sequence_number": self._num_events - 1} | data)


def status_of(finish_reason: str | None) -> Status:
    return "incomplete" if finish_reason == "length" else "completed"


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
        speculation=usage.speculation,
    )
