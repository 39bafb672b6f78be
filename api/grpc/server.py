"""The gRPC front as a whole: its port, its services, its beginning and end.

It shares the event loop and the `Service` of the HTTP front, so keys, the count of open requests,
readiness and draining are one thing for both. Exercised by `pytest tests/unit/api/test_grpc.py`.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_reflection.v1alpha import reflection
from hasten.api.grpc import health
from hasten.api.grpc.servicer import SERVICE_NAME, Servicer
from hasten.api.http.body import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hasten.api.http.service import Service

logger = logging.getLogger("hasten.server")

GRACE_S = 1.0
"""How long calls may take to end when their requests have."""
_OPTIONS = (
    # Two servers on one port would share its calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_BODY_BYTES),
)


class GrpcStartError(RuntimeError):
    """The front cannot start; the message is one line for the user."""


@asynccontextmanager
async def grpc_front(
    service: Service,
    address: tuple[str, int],
    tls: tuple[str, str] | None,
    drain: Callable[[], None],
) -> AsyncIterator[int]:
    """Answer gRPC on `address` while the block runs; yields the port.

    `tls` are the files of certificate chain and private key. Until the model is there, calls end
    with UNAVAILABLE, and health is NOT_SERVING. Raises GrpcStartError.
    """
    server = grpc.aio.server(options=_OPTIONS)
    names = (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
    server.add_generic_rpc_handlers(
        (Servicer(service, drain).handlers(), health.Health(service, names).handlers())
    )
    reflection.enable_server_reflection(names, server)
    port = _bind(server, address, tls)
    await server.start()
    logger.info("gRPC on port %d", port)
    try:
        yield port
    finally:
        await server.stop(GRACE_S)


def _bind(server: grpc.aio.Server, address: tuple[str, int], tls: tuple[str, str] | None) -> int:
    host, port = address
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound: int = (
            server.add_insecure_port(where)
            if tls is None
            else server.add_secure_port(where, _credentials(*tls))
        )
    except RuntimeError as error:
        raise GrpcStartError(f"cannot listen on {where} for gRPC: is the port in use?") from error
    return bound


def _credentials(certificate_file: str, key_file: str) -> grpc.ServerCredentials:
    try:
        key, certificate = Path(key_file).read_bytes(), Path(certificate_file).read_bytes()
    except OSError as error:
        raise GrpcStartError(f"cannot read {error.filename}: {error.strerror}") from error
    return grpc.ssl_server_credentials(((key, certificate),))
