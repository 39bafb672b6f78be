"""Errors as gRPC tells them: a status code, the message, and in the trailing metadata the field.

The texts are those of the HTTP API (`api.http.errors`). Exercised by
`pytest tests/unit/api/test_grpc.py`.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
from hasten.api.client import RequestAbortedError
from hasten.api.http.errors import ApiError, to_api_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

logger = logging.getLogger(__name__)

PARAM_KEY, CODE_KEY = "hasten-param", "hasten-code"
"""Trailing metadata: the field to change, and what the HTTP API calls the error."""

_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@asynccontextmanager
async def answering_errors(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """End the call with the status that an error from inside the block stands for."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except RequestAbortedError as error:
        await context.abort(grpc.StatusCode.ABORTED, str(error))
    except Exception as error:
        told = to_api_error(error)
        if told.status == 500:
            logger.exception("an error inside a gRPC call")
        status = _STATUS.get(told.status, grpc.StatusCode.UNKNOWN)
        await context.abort(status, str(told), _metadata(told))


def _metadata(error: ApiError) -> tuple[tuple[str, str], ...]:
    pairs = ((PARAM_KEY, error.param), (CODE_KEY, error.code))
    return tuple((key, value) for key, value in pairs if value is not None)
