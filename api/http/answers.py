"""The parts of an answer: usage, log-probabilities, and the choices of each end point.

Structs are encoded in the order of their fields, with the names of OpenAI's API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hasten.core.draft_counters import DraftCounters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.api.text import TextCodec
    from hasten.api.text.sample_text import SampleDelta, TokenRecord
    from hasten.core.messages import PositionLogprobs


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class SpeculationSummary(msgspec.Struct, frozen=True):
    """What became of a request's drafts: position j's was right `accepted_by_position[j]` times."""

    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_by_position: list[int]


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    speculation: SpeculationSummary | msgspec.UnsetType = msgspec.UNSET


class UsageCounter:
    """Counts the tokens of one HTTP request over its prompts and samples.

    With `summarises_drafts`, the usage says what became of the drafts.
    """

    def __init__(self, num_prompt_tokens: int, *, summarises_drafts: bool = False) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._drafts = DraftCounters() if summarises_drafts else None
        self._num_generated = 0
        self._cached_by_prompt: dict[int, int] = {}

    def add(self, delta: SampleDelta, prompt_idx: int = 0) -> None:
        self._num_generated += delta.num_tokens
        if self._drafts is not None and delta.num_tokens:
            self._drafts.count(delta.num_drafts, delta.num_accepted_drafts)
        if delta.sample_idx == 0:
            self._cached_by_prompt.setdefault(prompt_idx, delta.num_cached_tokens)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_generated,
            total_tokens=self._num_prompt_tokens + self._num_generated,
            prompt_tokens_details=PromptTokensDetails(sum(self._cached_by_prompt.values())),
            speculation=_summary(self._drafts),
        )


def _summary(drafts: DraftCounters | None) -> SpeculationSummary | msgspec.UnsetType:
    if drafts is None:
        return msgspec.UNSET
    reached = [count for count in drafts.accepted if count]
    return SpeculationSummary(sum(drafts.depths), drafts.num_drafted, drafts.num_accepted, reached)


def token_label(vocabulary: TextCodec, token_id: int) -> str:
    r"""What log-probabilities call a token: its text, or "bytes:\xe2\x80" for half a character."""
    raw = vocabulary.token_bytes(token_id)
    try:
        # A special token adds nothing to the text, but has a name.
        return raw.decode() if raw else vocabulary.decode([token_id], skip_special_tokens=False)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Alternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatToken]
    refusal: None = None


def chat_logprobs(
    vocabulary: TextCodec, records: Iterable[TokenRecord], num_top: int
) -> ChatLogprobs:
    """`logprobs` of a chat choice; `num_top` 0 shows each token's own only."""
    return ChatLogprobs(
        [
            _chat_token(vocabulary, record.token_id, record.logprobs, num_top)
            for record in records
            if record.logprobs is not None
        ]
    )


def _chat_token(
    vocabulary: TextCodec, token_id: int, logprobs: PositionLogprobs, num_top: int
) -> ChatToken:
    top = zip(logprobs.top_token_ids[:num_top], logprobs.top_logprobs[:num_top], strict=True)
    return ChatToken(
        token=token_label(vocabulary, token_id),
        logprob=logprobs.token_logprob,
        bytes=list(vocabulary.token_bytes(token_id)),
        top_logprobs=[
            Alternative(
                token_label(vocabulary, top_id), value, list(vocabulary.token_bytes(top_id))
            )
            for top_id, value in top
        ],
    )


class CompletionLogprobs(msgspec.Struct):
    """Parallel lists; the first token of an echoed prompt has null where others have values."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def completion_logprobs(
    vocabulary: TextCodec,
    tokens: Iterable[tuple[int, int, PositionLogprobs | None]],
    num_top: int,
) -> CompletionLogprobs:
    """`logprobs` of a text choice, from (token id, text offset, log-probabilities)."""
    result = CompletionLogprobs([], [], [], [])
    for token_id, text_offset, logprobs in tokens:
        result.tokens.append(token_label(vocabulary, token_id))
        result.text_offset.append(text_offset)
        result.token_logprobs.append(None if logprobs is None else logprobs.token_logprob)
        top = None if logprobs is None else _top_by_label(vocabulary, logprobs, num_top)
        result.top_logprobs.append(top)
    return result


def _top_by_label(
    vocabulary: TextCodec, logprobs: PositionLogprobs, num_top: int
) -> dict[str, float]:
    top: dict[str, float] = {}
    for token_id, value in list(zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True))[
        :num_top
    ]:
        # Tokens with the same text: the most likely one counts, and it comes first.
        top.setdefault(token_label(vocabulary, token_id), value)
    return top


class PromptLogprob(msgspec.Struct, frozen=True):
    """`rank` counts from 1; None for a token that is not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""As vLLM writes it: for each token of the prompt, by id, its own and the most likely ones."""


def prompt_logprobs(
    vocabulary: TextCodec,
    prompt: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    num_top: int,
) -> PromptLogprobs:
    """`prompt_logprobs` of an answer; None where nothing comes before the token."""
    return [
        None if position is None else _prompt_position(vocabulary, token_id, position, num_top)
        for token_id, position in zip(prompt, positions, strict=True)
    ]


def _prompt_position(
    vocabulary: TextCodec, token_id: int, position: PositionLogprobs, num_top: int
) -> dict[int, PromptLogprob]:
    own = PromptLogprob(position.token_logprob, None, token_label(vocabulary, token_id))
    top = zip(position.top_token_ids[:num_top], position.top_logprobs[:num_top], strict=True)
    ranked = {
        top_id: PromptLogprob(value, rank, token_label(vocabulary, top_id))
        for rank, (top_id, value) in enumerate(top, start=1)
    }
    return {token_id: own} | ranked


class FunctionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a call: its name comes with its first part, its arguments in pieces."""

    name: str | None = None
    arguments: str = msgspec.field(default_factory=str)


class CallPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a delta says of one call; `id` and `type` come with the first part."""

    index: int
    function: FunctionPart
    id: str | None = None
    type: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: str = "function"


class ChatAnswer(msgspec.Struct, frozen=True):
    """Thought and calls are there where there are any; content is null beside calls alone."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallPart] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer and every chunk of one begins with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    seed: int

    def answer(self, kind: type[ChatCompletion | TextCompletion], **rest: Any) -> bytes:
        """The whole answer, of this `kind`."""
        return msgspec.json.encode(kind(**msgspec.structs.asdict(self), **rest))

    def usage_chunk(self, usage: Usage) -> bytes:
        """The last chunk of a stream whose client asked for usage."""
        return b"data: " + self.answer(TextCompletion, choices=[], usage=usage) + b"\n\n"

    def chunk_encoder(self, *, include_usage: bool) -> ChunkEncoder:
        tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        return ChunkEncoder(b"data: " + msgspec.json.encode(self)[:-1] + b',"choices":[', tail)


class ChatCompletion(Envelope, frozen=True, kw_only=True):
    """The whole answer of `/v1/chat/completions`."""

    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(Envelope, frozen=True, kw_only=True):
    """The whole answer of `/v1/completions`."""

    choices: list[CompletionChoice]
    usage: Usage


class ChunkEncoder:
    """Writes the events of one stream: all but the choice is the same each time."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head = head
        self._tail = tail
        self._encoder = msgspec.json.Encoder()

    def __call__(self, choice: Choice) -> bytes:
        return self._head + self._encoder.encode(choice) + self._tail
