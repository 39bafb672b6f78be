"""What `/v1/responses` answers: response objects and their items, as OpenAI's API names them.

Written by `responses_answer.ResponseWriter`, described by `openapi`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from hasten.api.http.answers import ChatToken, SpeculationSummary
from hasten.api.http.responses_request import FunctionTool, NamedFunction


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    annotations: list[Any] = []
    logprobs: list[ChatToken]
    text: str


class ReasoningText(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"
):
    text: str


Part = OutputText | ReasoningText


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: str
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    summary: list[Any] = []
    content: list[ReasoningText]


class CallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str


Item = MessageItem | ReasoningItem | CallItem


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class ReasoningOptions(msgspec.Struct, frozen=True):
    effort: None = None
    summary: None = None


class TextFormat(msgspec.Struct, frozen=True):
    format: dict[str, Any]


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int
    speculation: SpeculationSummary | msgspec.UnsetType = msgspec.UNSET


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, whole or so far. What is constant here is what other servers let vary."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    background: bool = False
    error: None = None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningOptions = ReasoningOptions()
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextFormat
    tool_choice: Literal["none", "auto", "required"] | NamedFunction
    tools: list[FunctionTool]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None
    user: str | None


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True
