"""The body of `/v1/messages`, and what it asks for as a chat.

Anthropic's Messages API is a chat in another form: `chat` makes the `ChatRequest` that does the
checking, rendering and sampling. Exercised by `pytest tests/unit/api/test_anthropic.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from hasten.api.http.body import client_name, convert
from hasten.api.http.errors import ApiError, unsupported
from hasten.api.http.messages import ONLY_TEXT, CalledFunction, ChatMessage, ToolCall
from hasten.api.http.requests import MAX_MESSAGES, ChatRequest, Int32
from hasten.api.http.tools import ChosenFunction, FunctionDefinition, NamedChoice, Tool, ToolChoice

_CLIENT_NAMES = (
    ("stop$", "stop_sequences"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\]|tool_choice)\.function", r"\1"),
)

_LEFT_OUT = ("thinking", "redacted_thinking")
"""Blocks of earlier answers that models are not shown again."""


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text. Prefixes are cached unasked, so `cache_control` changes nothing."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    citations: list[Any] | None = None


class CallBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a function, of an earlier answer."""

    type: str
    id: str
    name: str
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None

    def call(self) -> ToolCall:
        arguments = msgspec.json.encode(self.input).decode()
        return ToolCall(self.id, CalledFunction(self.name, arguments))


class ResultBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a called function returned."""

    type: str
    tool_use_id: str
    content: str | list[dict[str, Any]] = ""
    is_error: bool = False
    cache_control: dict[str, Any] | None = None

    def message(self, where: str) -> ChatMessage:
        content = _text(self.content, f"{where}.content")
        return ChatMessage(role="tool", tool_call_id=self.tool_use_id, content=content)


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function as Anthropic's API describes it."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        definition = FunctionDefinition(self.name, self.description, self.input_schema, self.strict)
        return Tool("function", definition)


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice`. `name` goes with the type "tool"."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def choice(self) -> ToolChoice:
        """Raises ApiError."""
        if self.type == "tool":
            if self.name is None:
                raise ApiError(400, "tool_choice.name is required", param="tool_choice.name")
            return NamedChoice("function", ChosenFunction(self.name))
        return "required" if self.type == "any" else self.type


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str | list[dict[str, Any]]


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    user_id: str | None = None


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/messages`."""

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "container": (),
        "context_management": ({},),
        "mcp_servers": ([],),
        "output_config": ({},),
        "output_format": (),
        "service_tier": ("auto", "standard_only"),
        "thinking": ({"type": "disabled"},),
    }

    model: str
    messages: list[AnthropicMessage]
    max_tokens: Int32
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    metadata: Metadata | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Choice | None = None
    cache_control: dict[str, Any] | None = None
    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    output_config: Any = None
    output_format: Any = None
    service_tier: Any = None
    thinking: Any = None

    def chat(self) -> ChatRequest:
        """The chat that this asks for. Raises ApiError naming the field at fault."""
        for name, neutral in self.not_supported.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise unsupported(name, f"{name} is not supported")
        if self.temperature is not None and self.temperature > 1.0:
            reason = f"temperature: must be from 0.0 to 1.0, got {self.temperature}"
            raise ApiError(400, reason, param="temperature")
        return ChatRequest(
            model=self.model,
            messages=chat_messages(self.system, self.messages),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            stream=self.stream,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            **_tools(self.tools, self.tool_choice),
        )


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/messages/count_tokens`."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[dict[str, Any]] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Choice | None = None

    def chat(self) -> ChatRequest:
        return ChatRequest(
            model=self.model,
            messages=chat_messages(self.system, self.messages),
            **_tools(self.tools, self.tool_choice),
        )


def param_name(field: str) -> str:
    """What the client calls what the chat finds fault with."""
    return client_name(field, _CLIENT_NAMES)


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


def chat_messages(
    system: str | list[dict[str, Any]] | None, messages: list[AnthropicMessage]
) -> list[ChatMessage]:
    """A conversation as chats have it. Raises ApiError naming the block at fault."""
    if len(messages) > MAX_MESSAGES:
        reason = f"messages holds {len(messages)} messages, at most {MAX_MESSAGES}"
        raise ApiError(400, reason, param="messages")
    told = [] if not system else [ChatMessage(role="system", content=_text(system, "system"))]
    for i, message in enumerate(messages):
        told += _messages(message, f"messages[{i}].content")
    return told


def _tools(tools: list[FunctionTool] | None, choice: Choice | None) -> dict[str, Any]:
    """The fields of a chat that say the same."""
    return {
        "tools": None if tools is None else [tool.tool() for tool in tools],
        "tool_choice": None if choice is None else choice.choice(),
        "parallel_tool_calls": None if choice is None else not choice.disable_parallel_tool_use,
    }


def _messages(message: AnthropicMessage, where: str) -> list[ChatMessage]:
    """The messages that one is: what functions returned has a role of its own in chats."""
    content = message.content
    if isinstance(content, str):
        return [ChatMessage(role=message.role, content=content)]
    wheres = [(block, f"{where}[{i}]") for i, block in enumerate(content)]
    results = [
        convert(block, ResultBlock, at).message(at)
        for block, at in wheres
        if block.get("type") == "tool_result"
    ]
    calls = [
        convert(block, CallBlock, at).call()
        for block, at in wheres
        if block.get("type") == "tool_use"
    ]
    texts = [
        _block_text(block, at)
        for block, at in wheres
        if block.get("type") not in {"tool_result", "tool_use"}
    ]
    if results and not texts:
        return results
    said = ChatMessage(role=message.role, content="".join(texts), tool_calls=calls or None)
    return [*results, said]


def _text(content: str | list[dict[str, Any]], where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_block_text(block, f"{where}[{i}]") for i, block in enumerate(content))


def _block_text(block: dict[str, Any], where: str) -> str:
    kind = block.get("type")
    if kind in _LEFT_OUT:
        return ""
    if kind is not None and kind != "text":
        raise unsupported(f"{where}.type", f"{where}.type: {ONLY_TEXT}")
    return convert(block, TextBlock, where).text
