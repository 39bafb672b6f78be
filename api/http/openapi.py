"""`GET /openapi.json`: the API as an OpenAPI 3.1 document.

Paths come from the application's routes, and bodies from the types that decode them, so that the
document cannot say anything else than what is done. Exercised by
`pytest tests/unit/api/test_openapi.py`, and `make fuzz-api` sends what it allows and forbids.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from hasten.api.http.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette
    from starlette.requests import Request

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
"""By path; a POST that is not listed takes an object that this document does not describe."""
STREAMS = frozenset({"/v1/chat/completions", "/v1/completions"})
OPEN = frozenset({"/health", "/ready", "/version", "/metrics"})
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
    _, schemas = msgspec.json.schema_components(BODIES.values(), ref_template=_REFS)
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
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if path == "/metrics":
        content = {"text/plain": {"schema": {"type": "string"}}}
    if path in STREAMS:
        content["text/event-stream"] = {}
    operation: dict[str, Any] = {
        "responses": {"200": {"description": "what was asked for", "content": content}}
        | _errors(path),
        "security": [] if path in OPEN else [{"key": []}, {}],
    }
    if method == "POST":
        operation["requestBody"] = _request_body(path)
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation


def _request_body(path: str) -> dict[str, Any]:
    kind = BODIES.get(path)
    schema = {"type": "object"} if kind is None else {"$ref": _REFS.format(name=kind.__name__)}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _errors(path: str) -> dict[str, Any]:
    """By status: the same for all end points of one shape. None is a 500: that would be a bug."""
    name = "MessagesError" if path.startswith("/v1/messages") else "Error"
    content = {"application/json": {"schema": {"$ref": _REFS.format(name=name)}}}
    return {
        str(status): {"description": text, "content": content} for status, text in _ERRORS.items()
    }
