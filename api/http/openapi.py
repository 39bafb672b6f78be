"""`GET /openapi.json`: the API as an OpenAPI 3.1 document.

Paths come from the application's routes, bodies from the types that decode them, and answers from
the types that are encoded, so that the document cannot say anything else than what is done.
Exercised by
`pytest tests/unit/api/test_openapi.py`, and `make fuzz-api` sends what it allows and forbids.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from hasten.api.http.about import (
    Detokenized,
    DetokenizeRequest,
    ModelEntry,
    ModelList,
    Status,
    TokenizeRequest,
    TokenizerFacts,
    Tokens,
    Version,
)
from hasten.api.http.answers import ChatCompletion, TextCompletion
from hasten.api.http.anthropic_answer import Message
from hasten.api.http.anthropic_request import CountTokensRequest, MessagesRequest, TokenCount
from hasten.api.http.embeddings import EmbeddingList, EmbeddingRequest
from hasten.api.http.live import Live, RequestList
from hasten.api.http.requests import ChatRequest, CompletionRequest
from hasten.api.http.responses_objects import DeletedResponse, ResponseObject
from hasten.api.http.responses_request import ResponsesRequest
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request

Kind = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Operation:
    """What is taken and given on one path. `answer` None is Prometheus text."""

    answer: Kind | None
    body: Kind | None = None
    is_streamed: bool = False

    @property
    def kinds(self) -> list[Kind]:
        return [kind for kind in (self.body, self.answer) if kind is not None]


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(ChatCompletion, ChatRequest, is_streamed=True),
    ("POST", "/v1/completions"): Operation(TextCompletion, CompletionRequest, is_streamed=True),
    ("POST", "/v1/responses"): Operation(ResponseObject, ResponsesRequest, is_streamed=True),
    ("GET", "/v1/responses/{id}"): Operation(ResponseObject),
    ("DELETE", "/v1/responses/{id}"): Operation(DeletedResponse),
    ("POST", "/v1/messages"): Operation(Message, MessagesRequest, is_streamed=True),
    ("POST", "/v1/messages/count_tokens"): Operation(TokenCount, CountTokensRequest),
    ("POST", "/v1/embeddings"): Operation(EmbeddingList, EmbeddingRequest),
    ("GET", "/v1/models"): Operation(ModelList),
    ("GET", "/v1/models/{model}"): Operation(ModelEntry),
    ("POST", "/tokenize"): Operation(Tokens, TokenizeRequest),
    ("POST", "/detokenize"): Operation(Detokenized, DetokenizeRequest),
    ("GET", "/tokenizer_info"): Operation(TokenizerFacts),
    ("GET", "/health"): Operation(Status),
    ("GET", "/ready"): Operation(Status),
    ("GET", "/version"): Operation(Version),
    ("GET", "/metrics"): Operation(None),
    ("GET", "/v1/live"): Operation(Live),
    ("GET", "/v1/debug/requests"): Operation(RequestList),
}
OPEN = frozenset({"/health", "/ready", "/version", "/metrics"})
PROBES = frozenset({"/health", "/ready"})
HIDDEN = frozenset({"/", "/page/{name}", "/openapi.json"})
_REFS = "#/components/schemas/{name}"

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MESSAGES_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
"""Anthropic's shape."""
_ERRORS = {
    400: "the request is at fault; `param` says where",
    401: "the API key is missing or wrong",
    403: "the API key may not do this",
    404: "no such model, or no such path",
    405: "no such method on this path",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is compressed",
    429: "more than this server, or this key, may have at once; see Retry-After",
    503: "the server does not serve now",
    504: "the deadline of the request has passed",
}


async def show_openapi(request: Request) -> Response:
    """The document of this application."""
    body = msgspec.json.encode(document(request.app))
    return Response(body, media_type="application/json")


@cache
def document(app: Starlette) -> dict[str, Any]:
    """The OpenAPI document of an application's routes."""
    kinds = [kind for operation in OPERATIONS.values() for kind in operation.kinds]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REFS)
    paths: dict[str, dict[str, Any]] = {}
    for path, method in _routes(app):
        paths.setdefault(path, {})[method.lower()] = _operation(path, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hasten", "version": version("hasten")},
        "paths": paths,
        "components": {
            "schemas": schemas | {"Error": _ERROR, "MessagesError": _MESSAGES_ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _routes(app: Starlette) -> Iterator[tuple[str, str]]:
    for route in app.routes:
        if isinstance(route, Route) and route.path not in HIDDEN:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                yield route.path.replace(":path}", "}"), method


def _operation(path: str, method: str) -> dict[str, Any]:
    """Raises KeyError for a route that `OPERATIONS` does not know."""
    known = OPERATIONS[method, path]
    operation: dict[str, Any] = {
        "responses": {"200": {"description": "what was asked for", "content": _content(known)}}
        | _errors(path),
        "security": [] if path in OPEN else [{"key": []}, {}],
    }
    if known.body is not None:
        content = {"application/json": _schema(known.body.__name__)}
        operation["requestBody"] = {"required": True, "content": content}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation


def _schema(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": _REFS.format(name=name)}}


def _content(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    answer = {"application/json": _schema(operation.answer.__name__)}
    # What events hold is for each API's own documentation: OpenAPI 3.1 has no words for it.
    return answer | ({"text/event-stream": {}} if operation.is_streamed else {})


def _errors(path: str) -> dict[str, Any]:
    """By status: the same for all end points of one shape. None is a 500: that would be a bug."""
    name = "MessagesError" if path.startswith("/v1/messages") else "Error"
    content = {"application/json": _schema(name)}
    errors = {
        str(status): {"description": text, "content": content} for status, text in _ERRORS.items()
    }
    if path in PROBES:
        errors["503"] = errors["503"] | {"content": {"application/json": _schema("Status")}}
    return errors
