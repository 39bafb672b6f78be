"""The bodies of requests, as OpenAI's API names them, with vLLM's names for what it lacks.

Every field is honoured. Those of OpenAI's API that are not supported yet are declared too, so that
a neutral value (as clients send it by default) passes and any other is refused by name.
Exercised by `pytest tests/unit/api/test_chat_completions.py`.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import msgspec
from hasten.api.http.errors import ApiError, unsupported
from hasten.api.http.messages import ChatMessage
from hasten.api.http.tools import Tool, ToolChoice, ToolUse
from hasten.api.params import SamplingParams
from hasten.api.structured.formats import ResponseFormat, StructuredOutputs
from hasten.api.text.answer_plan import PLAIN, AnswerPlan
from hasten.core.params import Beam, Speculative

if TYPE_CHECKING:
    from hasten.api.text.answer_plan import AnswerStyle
    from hasten.api.text_model import TextModel

MAX_PROMPTS = 1024
MAX_MESSAGES = 2048
MAX_METADATA = 16  # entries
MAX_METADATA_KEY_LEN, MAX_METADATA_VALUE_LEN = 64, 512  # characters; OpenAI's limits
TEMPLATE_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

# What no server could honour is refused before it meets an integer of fixed width.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer. The last two are declared to be refused by name."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False

    def check(self, *, is_streamed: bool) -> None:
        """Raises ApiError."""
        if not is_streamed:
            reason = "stream_options is for streamed answers only"
            raise ApiError(400, reason, param="stream_options")
        for name in ("include_obfuscation", "continuous_usage_stats"):
            if getattr(self, name):
                param = f"stream_options.{name}"
                raise unsupported(param, f"{param} is not supported")


class SpeculativeFields(Speculative, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `summary`, the usage of the answer says what became of the drafts."""

    summary: bool = False

    def wish(self) -> Speculative:
        """What of it is for the engine."""
        return Speculative(enabled=self.enabled, max_depth=self.max_depth, method=self.method)


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all requests for text may say. None means: not given.

    With `use_beam_search` the answer is the best `n` of as many hypotheses as `best_of` says.
    """

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
    deadline_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None
    speculative: SpeculativeFields | None = None
    use_beam_search: bool = False
    best_of: Int32 | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    prompt_logprobs: Int32 | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None

    def check(self) -> None:
        """Refuse what is understood but not supported. Raises ApiError 400 naming the field."""
        for name, neutral in self.not_supported.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise unsupported(name, f"{name} is not supported yet")
        if self.stream_options is not None:
            self.stream_options.check(is_streamed=self.stream)
        if self.prompt_logprobs is not None and self.stream:
            reason = "prompt_logprobs is for answers that are not streamed"
            raise ApiError(400, reason, param="prompt_logprobs")
        if self.spaces_between_special_tokens and self.skip_special_tokens is False:
            name = "spaces_between_special_tokens"
            raise unsupported(name, f"{name}: special tokens are shown as they are")
        self._check_beams()

    def _check_beams(self) -> None:
        if self.use_beam_search and self.stream:
            raise unsupported("stream", "stream: a beam search knows its answer at the end only")
        if self.use_beam_search:
            return
        neutral: dict[str, Any] = {
            "best_of": self.n or 1,
            "length_penalty": 1.0,
            "early_stopping": False,
        }
        for name, value in neutral.items():
            if getattr(self, name) not in (None, value):
                raise unsupported(name, f"{name} needs use_beam_search: true")

    @property
    def beam(self) -> Beam | None:
        """The beam search that is asked for."""
        if not self.use_beam_search:
            return None
        return Beam(
            width=(self.n or 1) if self.best_of is None else self.best_of,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
            early_stopping=self.early_stopping or False,
        )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def summarises_drafts(self) -> bool:
        return self.speculative is not None and self.speculative.summary


class _AbstractStruct(msgspec.StructMeta, ABCMeta):
    """Of structs that leave methods to those derived from them."""


class GenerationRequest(
    GenerationFields,
    metaclass=_AbstractStruct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
):
    """What a served model is asked for: fields, and how to read prompts and answers."""

    def sampling_params(self, defaults: dict[str, float | int]) -> SamplingParams:
        """The sampling parameters; `defaults` are the model's own for those not given.

        Those say how to sample, which a beam search does not.
        """
        values: dict[str, Any] = {} if self.use_beam_search else dict(defaults)
        for name in set(SamplingParams.__struct_fields__) & set(self.__struct_fields__):
            value = getattr(self, name)
            if value is not None:
                values[name] = tuple(value) if isinstance(value, list) else value
        if isinstance(self.stop, str):
            values["stop"] = (self.stop,)
        values["beam"] = self.beam
        if self.speculative is not None:
            values["speculative"] = self.speculative.wish()
        values |= self._own_params()
        return SamplingParams(**values)

    @abstractmethod
    def _own_params(self) -> dict[str, Any]:
        """What this kind of request says differently from `SamplingParams`."""

    def param_name(self, field: str) -> str:
        """What the client calls a parameter that the engine finds fault with."""
        width = "n" if self.best_of is None else "best_of"
        own = {"beam": "use_beam_search", "beam.width": width}.get(field)
        return own or field.removeprefix("beam.")

    @abstractmethod
    def token_ids(self, text: TextModel) -> list[list[int]]:
        """The prompts; computes for a while. Raises InvalidParameterError and ApiError."""

    def grammar(self, style: AnswerStyle) -> str:  # noqa: ARG002  of chats only
        """What the output has to follow, empty for anything; computes for a while.

        Raises InvalidParameterError and ApiError.
        """
        return ""

    def answer_plan(self, style: AnswerStyle, prompt_end: str) -> AnswerPlan:  # noqa: ARG002  of chats only
        """How to take the answer apart, for a model with this style. Raises ApiError."""
        return PLAIN


class ChatRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/chat/completions`."""

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "prediction": (),
        "reasoning_effort": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: list[ChatMessage]
    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    modalities: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    service_tier: Any = None
    store: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        GenerationFields.check(self)
        if not self.messages:
            raise ApiError(400, "messages must not be empty", param="messages")
        if len(self.messages) > MAX_MESSAGES:
            reason = f"messages holds {len(self.messages)} messages, at most {MAX_MESSAGES}"
            raise ApiError(400, reason, param="messages")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(
                400,
                "max_tokens and max_completion_tokens are the same: give one",
                param="max_completion_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        _check_metadata(self.metadata or {})
        for i, message in enumerate(self.messages):
            message.check_role(f"messages[{i}]")
        self._check_structure()
        for name in TEMPLATE_VARIABLES & (self.chat_template_kwargs or {}).keys():
            param = f"chat_template_kwargs.{name}"
            raise ApiError(400, f"{param} cannot be set by a request", param=param)

    def token_ids(self, text: TextModel) -> list[list[int]]:
        tools = self.tool_use.for_template()
        return [text.chat_prompt(self.template_messages(), self.chat_template_kwargs, tools)]

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as a chat template takes them."""
        return [message.for_template(f"messages[{i}]") for i, message in enumerate(self.messages)]

    @property
    def tool_use(self) -> ToolUse:
        """Raises ApiError."""
        return ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls)

    def grammar(self, style: AnswerStyle) -> str:
        tools = self.tool_use.grammar(style.tool_parser)
        return tools or _grammar(self.response_format, self.structured_outputs)

    def answer_plan(self, style: AnswerStyle, prompt_end: str) -> AnswerPlan:
        use = self.tool_use
        if use.choice == "auto" and use.tools and style.tool_parser is None:
            reason = "tool_choice: this server has --no-enable-auto-tool-choice"
            raise unsupported("tool_choice", reason)
        parser = use.parser(style.tool_parser or "")
        return style.plan(parser, prompt_end, is_named=use.is_named, parallel=use.parallel)

    def _check_structure(self) -> None:
        """One thing at a time may rule the output."""
        _check_one_structure(self.response_format, self.structured_outputs)
        is_structured = self.structured_outputs is not None or (
            self.response_format is not None and self.response_format.type != "text"
        )
        if is_structured and self.tool_use.choice != "none":
            name = "response_format" if self.structured_outputs is None else "structured_outputs"
            reason = f"{name}: cannot be combined with tools, unless tool_choice is 'none'"
            raise unsupported(name, reason)

    def param_name(self, field: str) -> str:
        if field == "max_tokens" and self.max_completion_tokens is not None:
            return "max_completion_tokens"
        own = {"prompt": "messages", "logprobs": "top_logprobs"}.get(field)
        return own or GenerationRequest.param_name(self, field)

    def _own_params(self) -> dict[str, Any]:
        max_tokens = self.max_tokens if self.max_tokens is not None else self.max_completion_tokens
        return {
            "max_tokens": max_tokens,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }


def _check_one_structure(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> None:
    if response_format is not None and structured_outputs is not None:
        reason = "response_format and structured_outputs are the same: give one"
        raise ApiError(400, reason, param="structured_outputs")


def _grammar(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> str:
    if structured_outputs is not None:
        return structured_outputs.compiled()
    return "" if response_format is None else response_format.grammar()


def _check_metadata(metadata: dict[str, str]) -> None:
    """OpenAI's limits; there is nothing to do with it, for answers are not stored."""
    if len(metadata) > MAX_METADATA:
        reason = f"metadata holds {len(metadata)} entries, at most {MAX_METADATA}"
        raise ApiError(400, reason, param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_LEN or len(value) > MAX_METADATA_VALUE_LEN:
            raise ApiError(
                400,
                f"metadata: keys have at most {MAX_METADATA_KEY_LEN} characters and values at most "
                f"{MAX_METADATA_VALUE_LEN}",
                param="metadata",
            )


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/completions`; a prompt is a text or token ids, or a list of either.

    `max_tokens` 0 generates nothing: for scoring a prompt (`echo`, `prompt_logprobs`).
    """

    not_supported: ClassVar[dict[str, tuple[Any, ...]]] = {"suffix": ("",)}

    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool = True
    echo: bool = False
    logprobs: Int32 | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    suffix: Any = None

    def prompts(self) -> list[str | list[int]]:
        """The prompts, of one form. Raises ApiError for an empty or a mixed list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        kinds = set(map(type, self.prompt))
        if len(kinds) != 1:
            reason = "must not be empty" if not kinds else "must hold items of one kind"
            raise ApiError(400, f"prompt {reason}", param="prompt")
        if int in kinds:
            return [cast("list[int]", self.prompt)]
        if len(self.prompt) > MAX_PROMPTS:
            raise ApiError(
                400,
                f"prompt holds {len(self.prompt)} prompts, at most {MAX_PROMPTS}",
                param="prompt",
            )
        return cast("list[str | list[int]]", self.prompt)

    def token_ids(self, text: TextModel) -> list[list[int]]:
        prompts = [
            text.encode(prompt, add_special_tokens=self.add_special_tokens)
            if isinstance(prompt, str)
            else prompt
            for prompt in self.prompts()
        ]
        for prompt in prompts:
            text.check_prompt(prompt)
        return prompts

    def check(self) -> None:
        GenerationFields.check(self)
        if self.generates_nothing and self.min_tokens:
            raise ApiError(400, "min_tokens: max_tokens is 0", param="min_tokens")
        _check_one_structure(self.response_format, self.structured_outputs)

    def grammar(self, style: AnswerStyle) -> str:  # noqa: ARG002  of chats only
        return _grammar(self.response_format, self.structured_outputs)

    @property
    def generates_nothing(self) -> bool:
        return self.max_tokens == 0

    def param_name(self, field: str) -> str:
        is_echo = field == "prompt_logprobs" and self.prompt_logprobs is None
        return "logprobs" if is_echo else GenerationRequest.param_name(self, field)

    def _own_params(self) -> dict[str, Any]:
        # OpenAI's default for text completions. The engine's least is one token, which
        # `api.http.completions` drops again.
        max_tokens = 16 if self.max_tokens is None else self.max_tokens or 1
        scores = [self.prompt_logprobs, self.logprobs if self.echo else None]
        wanted = [num_top for num_top in scores if num_top is not None]
        return {"max_tokens": max_tokens, "prompt_logprobs": max(wanted, default=None)}
