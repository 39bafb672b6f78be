"""The bodies of requests, as OpenAI's API names them, with vLLM's names for what it lacks.

Every field is honoured. Those of OpenAI's API that are not supported yet are declared too, so that
a neutral value (as clients send it by default) passes and any other is refused by name.
Exercised by `pytest tests/unit/api/test_requests.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from hasten.api.http.errors import ApiError
from hasten.api.params import SamplingParams

MAX_PROMPTS = 1024

# What no server could honour is refused before it meets an integer of fixed width.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer."""

    include_usage: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chat and text completions share. None means: not given."""

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI's API that only take these values (and null)."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Int32 | None = None
    n: Int32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[Int32, float] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    user: str | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: Int32 | None = None
    stop_token_ids: list[Int32] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Int32] | None = None
    priority: Int32 = 0
    cache_salt: str | None = None

    def check(self) -> None:
        """Refuse what is understood but not supported. Raises ApiError 400 naming the field."""
        for name, neutral in self.not_supported.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise ApiError(
                    400, f"{name} is not supported yet", param=name, code="unsupported_parameter"
                )
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options is for streamed answers only", param="stream_options"
            )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling_params(self, defaults: dict[str, float | int]) -> SamplingParams:
        """The sampling parameters; `defaults` are the model's own for those not given."""
        values: dict[str, Any] = dict(defaults)
        for name in SamplingParams.__struct_fields__:
            value = getattr(self, name, None)
            if value is not None:
                values[name] = tuple(value) if isinstance(value, list) else value
        if isinstance(self.stop, str):
            values["stop"] = (self.stop,)
        values |= self._own_params()
        return SamplingParams(**values)

    def _own_params(self) -> dict[str, Any]:
        """What this kind of request says differently from `SamplingParams`."""
        raise NotImplementedError

    def param_name(self, field: str) -> str:
        """What the client calls a parameter that the engine finds fault with."""
        return field


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
                raise _unsupported_part(f"{where}.{field}")
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
        raise _unsupported_part(f"{where}.type")
    if part.text is None:
        raise ApiError(400, f"{where}.text is required", param=f"{where}.text")
    return part.text


def _unsupported_part(where: str) -> ApiError:
    return ApiError(
        400,
        f"{where}: only text is supported yet",
        param=where,
        code="unsupported_parameter",
    )


class ChatRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/chat/completions`."""

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "parallel_tool_calls": (True,),
        "prediction": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: list[ChatMessage]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    metadata: dict[str, str] | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    service_tier: Any = None
    store: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        GenerationRequest.check(self)
        if not self.messages:
            raise ApiError(400, "messages must not be empty", param="messages")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(
                400,
                "max_tokens and max_completion_tokens are the same: give one",
                param="max_completion_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")

    def template_messages(self) -> list[dict[str, str]]:
        """The messages as a chat template takes them."""
        rendered = []
        for i, message in enumerate(self.messages):
            # Templates know the older name.
            role = "system" if message.role == "developer" else message.role
            entry = {"role": role, "content": message.text(f"messages[{i}]")}
            if message.name is not None:
                entry["name"] = message.name
            rendered.append(entry)
        return rendered

    def param_name(self, field: str) -> str:
        if field == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        return {"prompt": "messages", "logprobs": "top_logprobs"}.get(field, field)

    def _own_params(self) -> dict[str, Any]:
        max_tokens = self.max_tokens if self.max_tokens is not None else self.max_completion_tokens
        return {
            "max_tokens": max_tokens,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/completions`; a prompt is a text or token ids, or a list of either."""

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {"best_of": (1,), "suffix": ("",)}

    prompt: str | list[str | int | list[int]]
    echo: bool = False
    logprobs: Int32 | None = None
    best_of: Any = None
    suffix: Any = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts, of one form. Raises ApiError for an empty or a mixed list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = {type(item) for item in self.prompt}
        if len(kinds) != 1:
            reason = "must not be empty" if not kinds else "must hold items of one kind"
            raise ApiError(400, f"prompt {reason}", param="prompt")
        if int in kinds:
            return [[item for item in self.prompt if isinstance(item, int)]]
        if len(self.prompt) > MAX_PROMPTS:
            raise ApiError(
                400,
                f"prompt holds {len(self.prompt)} prompts, at most {MAX_PROMPTS}",
                param="prompt",
            )
        return [item for item in self.prompt if not isinstance(item, int)]

    def param_name(self, field: str) -> str:
        return "logprobs" if field == "prompt_logprobs" else field

    def _own_params(self) -> dict[str, Any]:
        # OpenAI's default for text completions.
        max_tokens = 16 if self.max_tokens is None else self.max_tokens
        prompt_logprobs = self.logprobs if self.echo else None
        return {"max_tokens": max_tokens, "prompt_logprobs": prompt_logprobs}


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/tokenize`."""

    prompt: str
    add_special_tokens: bool = True
    model: str | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/detokenize`."""

    tokens: list[int]
    model: str | None = None
