"""The standard health service (grpc.health.v1), answered from what the server is at the moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from hasten.api.http.service import Service

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Health"].full_name
WATCH_INTERVAL_S = 0.2


class Health:
    """SERVING while new requests are taken, as `/ready` has it.

    `names` are the services that may be asked after; "" is the server as a whole.
    """

    def __init__(self, service: Service, names: tuple[str, ...]) -> None:
        self._service = service
        self._names = ("", *names)

    def handlers(self) -> grpc.GenericRpcHandler:
        write = pb.HealthCheckResponse.SerializeToString
        read = pb.HealthCheckRequest.FromString
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, read, write),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, read, write),
            },
        )

    async def check(
        self, message: pb.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthCheckResponse:
        if message.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {message.service!r}")
        return pb.HealthCheckResponse(status=self._status(message.service))

    async def watch(
        self, message: pb.HealthCheckRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[pb.HealthCheckResponse]:
        """The status now and whenever it has changed, until the client leaves."""
        told = None
        while True:
            status = self._status(message.service)
            if status != told:
                yield pb.HealthCheckResponse(status=status)
                told = status
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _status(self, name: str) -> pb.HealthCheckResponse.ServingStatus:
        if name not in self._names:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        is_ready = self._service.why_not_ready is None
        statuses = pb.HealthCheckResponse
        return statuses.SERVING if is_ready else statuses.NOT_SERVING
