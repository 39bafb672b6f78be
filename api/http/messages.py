"""The messages of a conversation, as OpenAI's API writes them.

Exercised by `pytest tests/unit/api/test_bad_requests.py tests/unit/api/test_chat_completions.py`.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from hasten.api.http.errors import ApiError, unsupported

ONLY_TEXT = "only text is supported yet"


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None


class CalledFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`arguments` are JSON, as the model wrote them."""

    name: str
    arguments: str

    def parsed(self, where: str) -> dict[str, Any]:
        """The arguments as templates want them. Raises ApiError for what is no object."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise ApiError(400, f"{where}: must be a JSON object, as text", param=where)
        return arguments


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier answer; streams number calls with `index`."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"
    index: int | None = None

    def for_template(self, where: str) -> dict[str, Any]:
        arguments = self.function.parsed(f"{where}.function.arguments")
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message. The last fields are part of answers that clients send back unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self, where: str) -> dict[str, Any]:
        """The message as a chat template takes it. Raises ApiError."""
        # Templates know the older name.
        role = "system" if self.role == "developer" else self.role
        entry: dict[str, Any] = {"role": role, "content": self.text(where)}
        for field in ("name", "tool_call_id", "reasoning_content"):
            if getattr(self, field) is not None:
                entry[field] = getattr(self, field)
        if self.tool_calls:
            entry["tool_calls"] = [
                call.for_template(f"{where}.tool_calls[{i}]")
                for i, call in enumerate(self.tool_calls)
            ]
        return entry

    def check_role(self, where: str) -> None:
        """Raises ApiError for fields that belong to another role."""
        owners = {
            "tool_calls": ("assistant",),
            "reasoning_content": ("assistant",),
            "tool_call_id": ("tool",),
        }
        for field, roles in owners.items():
            if getattr(self, field) is not None and self.role not in roles:
                param = f"{where}.{field}"
                raise ApiError(400, f"{param}: only for the role {roles[0]!r}", param=param)

    def text(self, where: str) -> str:
        """The content as one string. Raises ApiError naming the part that is no text."""
        for field in ("audio", "function_call"):
            if getattr(self, field):
                raise unsupported(f"{where}.{field}", f"{where}.{field}: {ONLY_TEXT}")
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            if self.role == "assistant":
                return ""
            raise ApiError(400, f"{where}.content is required", param=f"{where}.content")
        return "".join(
            _part_text(part, f"{where}.content[{i}]") for i, part in enumerate(self.content)
        )


def _part_text(part: TextPart, where: str) -> str:
    if part.type != "text":
        raise unsupported(f"{where}.type", f"{where}.type: {ONLY_TEXT}")
    if part.text is None:
        raise ApiError(400, f"{where}.text is required", param=f"{where}.text")
    return part.text
