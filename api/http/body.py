"""Reading a request's body: size, syntax, types and names are checked before any work is done.

Exercised by `pytest tests/unit/api/test_body.py`.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from typing import TYPE_CHECKING, TypeVar

import msgspec
from hasten.api.http.errors import ApiError
from hasten.api.http.streaming import ClientGoneError
from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from starlette.requests import Request

MAX_BODY_BYTES = 8 * 2**20
BODY_LIMIT_S = 30.0
"""How long a body may take to arrive: a client that sends byte by byte holds nothing for long."""

_Body = TypeVar("_Body", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING_FIELD = re.compile(r"missing required field `(?P<name>[^`]*)`")
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")


async def read_body(request: Request) -> bytes:
    """The whole body.

    Raises ApiError 413 as soon as it is known to be too large, and 408 when it does not arrive;
    ClientGoneError when the client leaves first.
    """
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


def _invalid(message: str, kind: type[msgspec.Struct]) -> ApiError:
    found = _PATH.search(message)
    path = found["path"] if found else ""
    reason = message[: found.start()] if found else message
    if unknown := _UNKNOWN_FIELD.search(reason):
        return _unknown_field(path, unknown["name"], kind)
    if missing := _MISSING_FIELD.search(reason):
        param = _join(path, missing["name"])
        return ApiError(400, f"{param} is required", param=param, code="missing_field")
    where = path or "the body"
    return ApiError(
        400, f"{where}: {_lower_first(reason)}", param=path or None, code="invalid_type"
    )


def _unknown_field(path: str, name: str, kind: type[msgspec.Struct]) -> ApiError:
    param = _join(path, name)
    known = kind.__struct_fields__ if not path else ()
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return ApiError(400, f"unknown field {param!r}{hint}", param=param, code="unknown_field")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
