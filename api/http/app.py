"""The ASGI application: routes, and the gate that every request passes.

Exercised by `pytest tests/unit/api/test_endpoints.py tests/server`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from fastapi import FastAPI
from hasten.api.http.about import (
    detokenize,
    health,
    list_models,
    metrics,
    ready,
    show_model,
    show_version,
    tokenize,
    tokenizer_info,
)
from hasten.api.http.anthropic import count_tokens, create_message
from hasten.api.http.anthropic_answer import error_response
from hasten.api.http.chat import create_chat_completion
from hasten.api.http.completions import create_completion
from hasten.api.http.embeddings import create_embeddings
from hasten.api.http.errors import EXPECTED_ERRORS, ApiError, answer_error
from hasten.api.http.live import debug_requests, live
from hasten.api.http.openapi import show_openapi
from hasten.api.http.pages import PREFIX, show_page
from hasten.api.http.responses import create_response, delete_response, show_response
from hasten.api.http.responses_store import ResponseStore
from hasten.api.http.streaming import ClientGoneError
from hasten.api.security.caller import Caller
from hasten.api.security.keys import ANYBODY
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.http.service import Service
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


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client has gone; the status is for the log (nginx's "client closed request")."""
    return Response(status_code=499)
