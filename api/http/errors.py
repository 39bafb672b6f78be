"""Errors in OpenAI's shape: message, type, the field at fault in `param`, and a code."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from hasten.api.client import (
    DeadlineExceededError,
    EngineError,
    GrammarTooComplexError,
    RequestAbortedError,
    RequestFailedError,
    RequestRefusedError,
    WaitedTooLongError,
)
from hasten.api.text.chat_template import ChatTemplateError
from hasten.core.params import InvalidParameterError
from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A request that is answered with an error. `param` is the field to change.

    `retry_after_s` tells when the same request may succeed, `allow` which methods may.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.allow = allow

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": str(self),
                "type": _TYPES.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """What an answer with this error says beside its body."""
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_s))
        if self.allow is not None:
            headers["allow"] = self.allow
        return headers

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def unsupported(param: str, message: str) -> ApiError:
    """The refusal of something that is understood, but not done here."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


RETRY_AFTER_WAIT_S = 1.0
"""For those who have waited in vain: nobody can say more than that there is a place now."""


def overloaded(message: str, retry_after_s: float, code: str = "overloaded") -> ApiError:
    """The refusal of what could be served at another time."""
    return ApiError(429, message, code=code, retry_after_s=retry_after_s)


def _refused(error: RequestRefusedError, param: str | None) -> ApiError:
    if error.retry_after_s is not None:
        return overloaded(str(error), error.retry_after_s)
    return ApiError(400, str(error), param=param, code="refused")


def _not_finished(error: EngineError) -> ApiError:
    match error:
        case DeadlineExceededError():
            told = ApiError(504, str(error), param="deadline_ms", code="deadline_exceeded")
        case WaitedTooLongError():
            told = overloaded(str(error), RETRY_AFTER_WAIT_S)
        case GrammarTooComplexError():
            told = ApiError(400, str(error), code="grammar_too_complex")
        case RequestFailedError():
            told = ApiError(500, str(error), code="request_failed")
        case _:
            code = "aborted" if isinstance(error, RequestAbortedError) else "engine_failed"
            told = ApiError(503, str(error), code=code)
    return told


def to_api_error(error: Exception) -> ApiError:
    """How a client is told of an error from below."""
    match error:
        case ApiError():
            told = error
        case InvalidParameterError():
            told = ApiError(400, str(error), param=error.field, code="invalid_value")
        case RequestRefusedError():
            told = _refused(error, error.field)
        case ChatTemplateError():
            told = ApiError(400, str(error), param="messages", code="chat_template")
        case EngineError():
            told = _not_finished(error)
        case HTTPException():
            allow = (error.headers or {}).get("Allow")
            told = ApiError(error.status_code, str(error.detail), allow=allow)
        case _:
            told = ApiError(500, "an error inside the server; see its log", code="internal")
    return told


@contextmanager
def naming_parameters(client_name: Callable[[str], str]) -> Iterator[None]:
    """Turn what a request asked for wrongly into an ApiError, by the client's name for it."""
    try:
        yield
    except InvalidParameterError as error:
        param = client_name(error.field)
        reason = str(error).removeprefix(f"{error.field}: ")
        raise ApiError(400, f"{param}: {reason}", param=param, code="invalid_value") from error
    except RequestRefusedError as error:
        param_or_none = None if error.field is None else client_name(error.field)
        raise _refused(error, param_or_none) from error


async def answer_error(_request: Request, error: Exception) -> Response:
    """Starlette's exception handler."""
    return to_api_error(error).response()


EXPECTED_ERRORS: tuple[type[Exception], ...] = (
    ApiError,
    ChatTemplateError,
    EngineError,
    HTTPException,
    InvalidParameterError,
    RequestRefusedError,
)
