"""The small end points: how the server is, what it serves, and its tokeniser.

Exercised by `pytest tests/unit/api/test_endpoints.py`.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import msgspec
from hasten.api.http.body import decode_body, read_body
from hasten.api.http.service import service_of
from hasten.api.text.detokenizer import text_of
from starlette.responses import Response

if TYPE_CHECKING:
    from hasten.api.http.served_model import ServedModel
    from starlette.requests import Request


class Status(msgspec.Struct, frozen=True):
    """The answer of `/health` and `/ready`."""

    status: str


class Version(msgspec.Struct, frozen=True):
    """The answer of `/version`."""

    version: str


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/models/{model}`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hasten"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/tokenize`."""

    prompt: str
    add_special_tokens: bool = True
    model: str | None = None


class Tokens(msgspec.Struct, frozen=True):
    """The answer of `/tokenize`."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/detokenize`."""

    tokens: list[int]
    model: str | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """The answer of `/detokenize`."""

    prompt: str


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/tokenizer_info`."""

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


def _json(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


async def health(request: Request) -> Response:
    """200 while the server and its engine are alive, 503 with the reason otherwise."""
    failure = service_of(request).failure
    return _json(Status(failure or "ok"), 503 if failure else 200)


async def ready(request: Request) -> Response:
    """200 while new requests are taken."""
    reason = service_of(request).why_not_ready
    return _json(Status(reason or "ready"), 503 if reason else 200)


async def show_version(_request: Request) -> Response:
    return _json(Version(version("hasten")))


async def metrics(request: Request) -> Response:
    """Prometheus text; without the engine's figures while there is no engine."""
    service = service_of(request)
    alive = service.model is not None and service.failure is None
    stats = await service.require_model().client.stats() if alive else None
    return Response(service.metrics.render(stats), media_type="text/plain; version=0.0.4")


def _entry(model: ServedModel) -> ModelEntry:
    return ModelEntry(id=model.name, created=model.created, max_model_len=model.info.max_model_len)


async def list_models(request: Request) -> Response:
    return _json(ModelList(data=[_entry(service_of(request).require_model())]))


async def show_model(request: Request) -> Response:
    model = service_of(request).require_model()
    model.check_name(request.path_params["model"])
    return _json(_entry(model))


async def tokenize(request: Request) -> Response:
    """The token ids of a text."""
    model = service_of(request).require_model()
    content = await read_body(request)
    body = decode_body(content, TokenizeRequest)
    model.check_name(body.model)
    encode = partial(
        model.tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens
    )
    token_ids = await model.in_thread(encode, len(content))
    return _json(Tokens(token_ids, len(token_ids), model.info.max_model_len))


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    model = service_of(request).require_model()
    content = await read_body(request)
    body = decode_body(content, DetokenizeRequest)
    model.check_name(body.model)

    def decode() -> str:
        model.text.check_token_ids(body.tokens, "tokens")
        return text_of(model.tokenizer, body.tokens)

    return _json(Detokenized(await model.in_thread(decode, len(content))))


async def tokenizer_info(request: Request) -> Response:
    """What evaluation tools want to know of the tokeniser."""
    info = service_of(request).require_model().tokenizer.info
    return _json(
        TokenizerFacts(
            bos_token=info.bos_token,
            eos_token=info.eos_token,
            pad_token=info.pad_token,
            chat_template=info.chat_template,
        )
    )
