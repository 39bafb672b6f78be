"""What gRPC messages ask for, as the requests that the served model takes.

The messages carry the HTTP API's fields under the same names, so what checks and resolves those
does it here too. Exercised by `pytest tests/unit/api/test_grpc.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.unknown_fields import UnknownFieldSet
from hasten.api.http.errors import ApiError
from hasten.api.http.requests import MAX_MESSAGES, GenerationRequest
from hasten.core.params import Speculative
from hasten.core.pooling import MEAN, METHODS

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from hasten.api.grpc import hasten_pb2 as pb
    from hasten.api.text_model import TextModel

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as chat templates take them."""

    messages: list[dict[str, str]]


Prompt = str | list[int] | Conversation


class GrpcGeneration(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `GenerateRequest` or `ScoreRequest`: one prompt, as text, token ids or messages."""

    prompt: Prompt
    logprobs: int | None = None

    def token_ids(self, text: TextModel) -> list[list[int]]:
        prompt = self._encoded(text)
        text.check_prompt(prompt)
        return [prompt]

    def _encoded(self, text: TextModel) -> list[int]:
        match self.prompt:
            case str():
                return text.encode(self.prompt)
            case Conversation():
                return text.chat_prompt(self.prompt.messages)
            case _:
                return self.prompt

    def param_name(self, field: str) -> str:
        own = GenerationRequest.param_name(self, field)
        return own if own in _OWN_FIELDS else f"sampling.{own}"

    def _own_params(self) -> dict[str, Any]:
        return {}


_OWN_FIELDS = ("model", "priority", "prompt", "request_id", "cache_salt", "num_top")


class GrpcScoring(GrpcGeneration, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `ScoreRequest` or `EmbedRequest`: what is wanted is on the way to a token, which is not."""

    def param_name(self, field: str) -> str:
        return {"prompt_logprobs": "num_top", "max_tokens": "prompt"}.get(field, field)


def generation_of(message: pb.GenerateRequest, left_s: float | None) -> GrpcGeneration:
    """The request, of which `left_s` are left until its call's deadline.

    Raises ApiError naming the field at fault.
    """
    check_known(message)
    return GrpcGeneration(
        model=message.model or None,
        prompt=prompt_of(message.prompt),
        priority=message.priority,
        cache_salt=message.cache_salt or None,
        deadline_ms=None if left_s is None else 1000 * left_s,
        **_sampling(message.sampling),
    )


def scoring_of(message: pb.ScoreRequest) -> GrpcScoring:
    """Raises ApiError naming the field at fault."""
    check_known(message)
    return GrpcScoring(
        model=message.model or None,
        prompt=prompt_of(message.prompt),
        priority=message.priority,
        max_tokens=1,
        prompt_logprobs=message.num_top,
    )


def embedding_of(message: pb.EmbedRequest) -> tuple[GrpcScoring, str]:
    """The request, and how to pool. Raises ApiError naming the field at fault."""
    check_known(message)
    pooling = message.pooling or MEAN
    if pooling not in METHODS:
        reason = f"pooling must be one of {', '.join(METHODS)}, got {pooling!r}"
        raise ApiError(400, reason, param="pooling")
    request = GrpcScoring(
        model=message.model or None,
        prompt=prompt_of(message.prompt),
        priority=message.priority,
        cache_salt=message.cache_salt or None,
        max_tokens=1,
    )
    return request, pooling


def check_known(message: Message) -> None:
    """Raises ApiError for a field that this server's protocol does not have, at any depth."""
    for unknown in UnknownFieldSet(message):
        name = message.DESCRIPTOR.full_name
        number = unknown.field_number
        raise ApiError(400, f"{name} has no field number {number}", code="unknown_field")
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for nested in value if field.is_repeated else (value,):
            check_known(nested)


def prompt_of(prompt: pb.Prompt) -> Prompt:
    """The prompt in the form that it came in. Raises ApiError when there is none."""
    match prompt.WhichOneof("kind"):
        case "text":
            text: str = prompt.text
            return text
        case "token_ids":
            return list(prompt.token_ids.ids)
        case "chat":
            return _messages(prompt.chat)
        case _:
            raise ApiError(400, "prompt: give text, token_ids or chat", param="prompt")


def _messages(chat: pb.Messages) -> Conversation:
    where = "prompt.chat.messages"
    if not 1 <= len(chat.messages) <= MAX_MESSAGES:
        reason = f"{where} holds {len(chat.messages)} messages; allowed: 1 to {MAX_MESSAGES}"
        raise ApiError(400, reason, param=where)
    for i, message in enumerate(chat.messages):
        if message.role not in ROLES:
            param = f"{where}[{i}].role"
            raise ApiError(400, f"{param} must be one of {', '.join(ROLES)}", param=param)
    return Conversation(
        [{"role": message.role, "content": message.content} for message in chat.messages]
    )


def _sampling(sampling: pb.Sampling) -> dict[str, Any]:
    """The fields that are set: their names are those of `GenerationRequest`."""
    values: dict[str, Any] = {}
    for field, value in sampling.ListFields():
        if field.name == "logit_bias":
            values[field.name] = dict(value)
        elif field.name == "speculative":
            given = {inner.name: inner_value for inner, inner_value in value.ListFields()}
            values[field.name] = Speculative(**given)
        elif field.name == "early_stopping":
            values[field.name] = {"true": True, "false": False}.get(value, value)
        else:
            values[field.name] = list(value) if field.is_repeated else value
    return values
