"""Reading a request's body: size, syntax, types and names are checked before any work is done.

Exercised by `pytest tests/unit/api/test_bad_requests.py`.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec
from hasten.api.http.errors import ApiError
from hasten.api.http.streaming import ClientGoneError
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from starlette.requests import Request

MAX_BODY_BYTES = 8 * 2**20
BODY_LIMIT_S = 30.0
"""How long a body may take to arrive: a client that sends byte by byte holds nothing for long."""

MAX_NAME_LEN = 64
"""Characters of an unknown field's name that are told, and compared with those that exist."""

_Body = TypeVar("_Body", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING_FIELD = re.compile(r"missing required field `(?P<name>[^`]*)`")
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")


async def read_body(request: Request) -> bytes:
    """The whole body.

    Raises ApiError 413 as soon as it is known to be too large, 408 when it does not arrive, and 415
    when it is compressed, as what it would expand to is not known before; ClientGoneError when the
    client leaves first.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        reason = f"the body must not be compressed (Content-Encoding: {encoding[:MAX_NAME_LEN]})"
        raise ApiError(415, reason, code="unsupported_encoding")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large()
    except ClientDisconnect as error:
        raise ClientGoneError from error
    except TimeoutError as error:
        reason = f"the body did not arrive within {BODY_LIMIT_S:g} s"
        raise ApiError(408, reason, code="request_timeout") from error
    return bytes(body)


def _too_large() -> ApiError:
    return ApiError(
        413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="request_too_large"
    )


def decode_body(body: bytes, kind: type[_Body]) -> _Body:
    """The body as a `kind`. Raises ApiError 400 that names the field and what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from error


def convert(value: object, kind: type[_Body], where: str) -> _Body:
    """A part of a body, decoded already, as a `kind`. Raises ApiError 400; `where` is its path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), kind, where) from error


@contextmanager
def renaming(name_of: Callable[[str], str]) -> Iterator[None]:
    """Tell what is wrong with a request made from a client's by the client's own names."""
    try:
        yield
    except ApiError as error:
        if error.param is None or (name := name_of(error.param)) == error.param:
            raise
        message = str(error).replace(error.param, name, 1)
        raise ApiError(error.status, message, param=name, code=error.code) from error


def client_name(field: str, names: Iterable[tuple[str, str]]) -> str:
    """`field` with its beginning replaced, by the first of `names` (pattern, name) that fits."""
    for pattern, name in names:
        if found := re.match(pattern, field):
            return found.expand(name) + field[found.end() :]
    return field


def _invalid(message: str, kind: type[msgspec.Struct], where: str = "") -> ApiError:
    found = _PATH.search(message)
    path = found["path"] if found else ""
    reason = message[: found.start()] if found else message
    known = () if path else kind.__struct_fields__
    path = _join(where, path) if path else where
    if unknown := _UNKNOWN_FIELD.search(reason):
        return _unknown_field(path, unknown["name"], known)
    if missing := _MISSING_FIELD.search(reason):
        param = _join(path, missing["name"])
        return ApiError(400, f"{param} is required", param=param, code="missing_field")
    shown = path or "the body"
    return ApiError(
        400, f"{shown}: {_lower_first(reason)}", param=path or None, code="invalid_type"
    )


def _unknown_field(path: str, name: str, known: Iterable[str]) -> ApiError:
    name = name[:MAX_NAME_LEN]
    param = _join(path, name)
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return ApiError(400, f"unknown field {param!r}{hint}", param=param, code="unknown_field")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and not name.startswith("[") else path + name


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
