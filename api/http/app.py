"""The ASGI application: routes, and the gate that every request passes.

Exercised by `pytest tests/unit/api/test_app.py tests/server`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI
from hasten.api.http.anthropic import count_tokens, create_message
from hasten.api.http.anthropic_answer import error_response
from hasten.api.http.body import decode_body, read_body
from hasten.api.http.chat import create_chat_completion
from hasten.api.http.completions import create_completion
from hasten.api.http.embeddings import create_embeddings
from hasten.api.http.errors import EXPECTED_ERRORS, ApiError, answer_error
from hasten.api.http.live import debug_requests, live
from hasten.api.http.openapi import show_openapi
from hasten.api.http.pages import PREFIX, show_page
from hasten.api.http.requests import DetokenizeRequest, TokenizeRequest
from hasten.api.http.responses import create_response, delete_response, show_response
from hasten.api.http.responses_store import ResponseStore
from hasten.api.http.service import Service, service_of
from hasten.api.http.streaming import ClientGoneError
from hasten.api.security.caller import Caller
from hasten.api.security.keys import ANYBODY
from hasten.api.text.detokenizer import text_of
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.http.served_model import ServedModel
    from hasten.api.security.keys import Key
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

_OPEN_PATHS = frozenset({"/", "/health", "/ready", "/version", "/metrics", "/openapi.json"})
_MESSAGES_PATH = "/v1/messages"
_GENERATION_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        _MESSAGES_PATH,
    }
)


def create_app(service: Service, allowed_origins: Sequence[str] = ()) -> FastAPI:
    """All end points over one `Service`; pages of `allowed_origins` may call them (CORS)."""
    app = FastAPI(title="Hasten", openapi_url=None)
    app.state.service = service
    app.state.responses = ResponseStore()
    for path, endpoint, method in (
        ("/v1/chat/completions", create_chat_completion, "POST"),
        ("/v1/completions", create_completion, "POST"),
        ("/v1/responses", create_response, "POST"),
        ("/v1/responses/{id}", show_response, "GET"),
        ("/v1/responses/{id}", delete_response, "DELETE"),
        (_MESSAGES_PATH, create_message, "POST"),
        ("/v1/embeddings", create_embeddings, "POST"),
        (f"{_MESSAGES_PATH}/count_tokens", count_tokens, "POST"),
        ("/v1/models", list_models, "GET"),
        ("/v1/models/{model:path}", show_model, "GET"),
        ("/tokenize", tokenize, "POST"),
        ("/detokenize", detokenize, "POST"),
        ("/tokenizer_info", tokenizer_info, "GET"),
        ("/health", health, "GET"),
        ("/ready", ready, "GET"),
        ("/version", show_version, "GET"),
        ("/metrics", metrics, "GET"),
        ("/openapi.json", show_openapi, "GET"),
        ("/v1/live", live, "GET"),
        ("/v1/debug/requests", debug_requests, "GET"),
        ("/", show_page, "GET"),
        (PREFIX + "{name}", show_page, "GET"),
    ):
        app.add_route(path, endpoint, methods=[method])
    for kind in (*EXPECTED_ERRORS, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(ClientGoneError, _answer_nobody)
    app.add_middleware(Gate, service=service)
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["retry-after"],
        )
    return app


class Gate:
    """Checks the key, turns work away while the server cannot take it, counts what is at work."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with ExitStack() as stack:
            try:
                key = self._key(scope)
                if scope["path"] in _GENERATION_PATHS:
                    who = Caller(key, trace_parent=_header(scope, b"traceparent").decode("latin-1"))
                    stack.enter_context(self._service.work(who))
            except ApiError as refusal:
                is_messages = scope["path"].startswith(_MESSAGES_PATH)
                answer = error_response(refusal) if is_messages else refusal.response()
                await answer(scope, receive, send)
                return
            await self._app(scope, receive, send)

    def _key(self, scope: Scope) -> Key:
        """Whose request it is. Raises ApiError 401."""
        path = scope["path"]
        if path in _OPEN_PATHS or path.startswith(PREFIX):
            return ANYBODY
        # Anthropic's clients send the bare key.
        bare = _header(scope, b"x-api-key")
        given = _header(scope, b"authorization") or (bare and b"Bearer " + bare)
        return self._service.check_key(given)


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client has gone; the status is for the log (nginx's "client closed request")."""
    return Response(status_code=499)


async def health(request: Request) -> Response:
    """200 while the server and its engine are alive, 503 with the reason otherwise."""
    failure = service_of(request).failure
    return _json({"status": failure or "ok"}, 503 if failure else 200)


async def ready(request: Request) -> Response:
    """200 while new requests are taken."""
    reason = service_of(request).why_not_ready
    return _json({"status": reason or "ready"}, 503 if reason else 200)


async def show_version(_request: Request) -> Response:
    return _json({"version": version("hasten")})


async def metrics(request: Request) -> Response:
    """Prometheus text; without the engine's figures while there is no engine."""
    service = service_of(request)
    alive = service.model is not None and service.failure is None
    stats = await service.require_model().client.stats() if alive else None
    return Response(service.metrics.render(stats), media_type="text/plain; version=0.0.4")


def _model_entry(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "hasten",
        "max_model_len": model.info.max_model_len,
    }


async def list_models(request: Request) -> Response:
    model = service_of(request).require_model()
    return _json({"object": "list", "data": [_model_entry(model)]})


async def show_model(request: Request) -> Response:
    model = service_of(request).require_model()
    model.check_name(request.path_params["model"])
    return _json(_model_entry(model))


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
    return _json(
        {
            "tokens": token_ids,
            "count": len(token_ids),
            "max_model_len": model.info.max_model_len,
        }
    )


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    model = service_of(request).require_model()
    body = decode_body(await read_body(request), DetokenizeRequest)
    model.check_name(body.model)
    model.text.check_token_ids(body.tokens, "tokens")
    return _json({"prompt": text_of(model.tokenizer, body.tokens)})


async def tokenizer_info(request: Request) -> Response:
    """What evaluation tools want to know of the tokeniser."""
    tokenizer = service_of(request).require_model().tokenizer
    info = tokenizer.info
    return _json(
        {
            "bos_token": info.bos_token,
            "eos_token": info.eos_token,
            "pad_token": info.pad_token,
            "chat_template": info.chat_template,
        }
    )
