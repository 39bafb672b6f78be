"""The messages of a conversation, as OpenAI's API writes them.

Exercised by `pytest tests/unit/api/test_bad_requests.py tests/unit/api/test_chat_completions.py`.
"""

from __future__ import annotations

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


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message. The last fields are part of answers that clients send back unchanged."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[Any] | None = None

    def text(self, where: str) -> str:
        """The content as one string. Raises ApiError naming the part that is no text."""
        for field in ("audio", "function_call", "tool_calls"):
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
