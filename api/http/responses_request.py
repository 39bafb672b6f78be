"""The body of `/v1/responses`, and what it asks for as a chat.

A response is a chat in another form: `chat` makes the `ChatRequest` that does the checking,
rendering and sampling. Exercised by `pytest tests/unit/api/test_responses.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
from hasten.api.http.body import client_name, convert
from hasten.api.http.errors import ApiError, unsupported
from hasten.api.http.messages import ONLY_TEXT, CalledFunction, ChatMessage, ToolCall
from hasten.api.http.requests import MAX_MESSAGES, ChatRequest, GenerationFields, Int32
from hasten.api.http.tools import ChosenFunction, FunctionDefinition, NamedChoice, Tool
from hasten.api.structured.formats import ResponseFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

LOGPROBS = "message.output_text.logprobs"
TEXT_PARTS = ("input_text", "output_text", "text")
_CLIENT_NAMES = (
    ("max_(completion_)?tokens", "max_output_tokens"),
    # Messages are counted otherwise than items, which may come after those of a response before.
    ("messages.*", "input"),
    (r"(response_format|text\.format)(\.json_schema)?", "text.format"),
    ("verbosity", "text.verbosity"),
    (r"(tools\[\d+\]|tool_choice)\.function", r"\1"),
)


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content; answers that are sent back carry more than their text."""

    type: str
    text: str | None = None
    refusal: str | None = None

    def as_text(self, where: str) -> str:
        """Raises ApiError for what is no text."""
        if self.type == "refusal":
            return self.refusal or ""
        if self.type not in TEXT_PARTS:
            raise unsupported(f"{where}.type", f"{where}.type: {ONLY_TEXT}")
        if self.text is None:
            raise ApiError(400, f"{where}.text is required", param=f"{where}.text")
        return self.text


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message; `id`, `status` and `phase` are part of answers that are sent back."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]
    type: str = "message"
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def message(self, where: str) -> ChatMessage:
        content = _joined(self.content, f"{where}.content")
        return ChatMessage(role=self.role, content=content)


class CallItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a function, of an earlier answer."""

    type: str
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None

    def message(self, _where: str) -> ChatMessage:
        call = ToolCall(self.call_id, CalledFunction(self.name, self.arguments))
        return ChatMessage(role="assistant", tool_calls=[call])


class CallOutputItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a called function returned."""

    type: str
    call_id: str
    output: str | list[ContentPart]
    id: str | None = None
    status: str | None = None

    def message(self, where: str) -> ChatMessage:
        content = _joined(self.output, f"{where}.output")
        return ChatMessage(role="tool", tool_call_id=self.call_id, content=content)


_ITEMS: dict[str, type[MessageItem | CallItem | CallOutputItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
}
_LEFT_OUT = ("reasoning",)
"""Items of earlier answers that models are not shown again."""


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function as the Responses API describes it."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        definition = FunctionDefinition(self.name, self.description, self.parameters, self.strict)
        return Tool("function", definition)


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice`: this function and no other."""

    type: Literal["function"]
    name: str

    def choice(self) -> NamedChoice:
        return NamedChoice("function", ChosenFunction(self.name))


class ResponsesRequest(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body. What `GenerationFields` has and OpenAI's API lacks may be given here too."""

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "background": (False,),
        "context_management": ([],),
        "conversation": (),
        "max_tokens": (),
        "max_tool_calls": (),
        "n": (1,),
        "prompt": (),
        "prompt_logprobs": (),
        "reasoning": ({},),
        "truncation": ("disabled",),
    }

    input: str | list[dict[str, Any]] = msgspec.field(default_factory=list)
    instructions: str | None = None
    max_output_tokens: Int32 | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: Any = None
    store: bool = True
    text: TextOptions | None = None
    top_logprobs: Int32 | None = None
    background: Any = None
    context_management: Any = None
    conversation: Any = None
    max_tool_calls: Any = None
    prompt: Any = None
    reasoning: Any = None
    truncation: Any = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def check(self) -> None:
        """What `chat` does not pass on to be checked. Raises ApiError."""
        GenerationFields.check(self)
        for i, name in enumerate(self.include or ()):
            if name != LOGPROBS:
                raise unsupported(f"include[{i}]", f"include[{i}]: only {LOGPROBS!r} is known")
        if self.top_logprobs and not self.wants_logprobs:
            raise ApiError(400, f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")

    def messages(self) -> list[ChatMessage]:
        """The input alone, as messages. Raises ApiError naming the item at fault."""
        if isinstance(self.input, str):
            return [ChatMessage(role="user", content=self.input)]
        if len(self.input) > MAX_MESSAGES:
            reason = f"input holds {len(self.input)} items, at most {MAX_MESSAGES}"
            raise ApiError(400, reason, param="input")
        found = (_message(item, f"input[{i}]") for i, item in enumerate(self.input))
        return _with_calls_together([message for message in found if message is not None])

    def chat(self, history: Sequence[ChatMessage]) -> ChatRequest:
        """The chat that this asks for, after `history` (of the previous response)."""
        told, choice = self.instructions, self.tool_choice
        first = [] if told is None else [ChatMessage(role="system", content=told)]
        shared = {name: getattr(self, name) for name in GenerationFields.__struct_fields__}
        return ChatRequest(
            **shared,
            messages=[*first, *history, *self.messages()],
            max_completion_tokens=self.max_output_tokens,
            logprobs=self.wants_logprobs,
            top_logprobs=self.top_logprobs if self.wants_logprobs else None,
            metadata=self.metadata,
            service_tier=self.service_tier,
            chat_template_kwargs=self.chat_template_kwargs,
            response_format=None if self.text is None else self.text.response_format(),
            verbosity=None if self.text is None else self.text.verbosity,
            tools=None if self.tools is None else [tool.tool() for tool in self.tools],
            tool_choice=choice.choice() if isinstance(choice, NamedFunction) else choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )

    def param_name(self, field: str) -> str:
        """What the client calls what the chat finds fault with."""
        return client_name(field, _CLIENT_NAMES)


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`text`: the form of the answer. Its format is a chat's `response_format`, less nested."""

    format: dict[str, Any] | None = None
    verbosity: Any = None

    def response_format(self) -> ResponseFormat | None:
        """Raises ApiError."""
        if self.format is None:
            return None
        values = self.format
        if values.get("type") == "json_schema":
            schema = {name: value for name, value in values.items() if name != "type"}
            values = {"type": "json_schema", "json_schema": schema}
        return convert(values, ResponseFormat, "text.format")


def _joined(content: str | list[ContentPart], where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.as_text(f"{where}[{i}]") for i, part in enumerate(content))


def _message(item: dict[str, Any], where: str) -> ChatMessage | None:
    """The message that an item is; None for those that are left out."""
    kind = item.get("type", "message")
    if kind in _LEFT_OUT:
        return None
    if kind not in _ITEMS:
        raise unsupported(
            f"{where}.type", f"{where}.type: items of type {kind!r} are not supported"
        )
    return convert(item, _ITEMS[kind], where).message(where)


def _with_calls_together(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Calls belong to the message of the assistant's that they follow, as chats have it."""
    together: list[ChatMessage] = []
    for message in messages:
        last = together[-1] if together else None
        if message.tool_calls and last is not None and last.role == "assistant":
            calls = [*(last.tool_calls or ()), *message.tool_calls]
            together[-1] = msgspec.structs.replace(last, tool_calls=calls)
        else:
            together.append(message)
    return together
