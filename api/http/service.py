"""What the server is at this moment: loading, ready, draining or failed, and with which model."""

from __future__ import annotations

import enum
import hmac
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from hasten.api.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.api.http.metrics import Metrics
    from hasten.api.http.served_model import ServedModel
    from starlette.requests import Request


class Phase(enum.Enum):
    LOADING = "the model is still loading"
    READY = "ready"
    DRAINING = "the server is shutting down"


@dataclass(slots=True)
class Service:
    """Shared by all end points of one server. `num_active` counts generation requests at work."""

    metrics: Metrics
    api_key: str | None = None
    phase: Phase = Phase.LOADING
    model: ServedModel | None = None
    num_active: int = field(default=0, init=False)

    def become_ready(self, model: ServedModel) -> None:
        self.model, self.phase = model, Phase.READY

    @property
    def failure(self) -> str | None:
        """Why the engine is of no use any more, or None."""
        return None if self.model is None else self.model.client.failure

    @property
    def why_not_ready(self) -> str | None:
        """Why no new request can be taken now, or None."""
        return self.failure if self.phase is Phase.READY else self.phase.value

    def check_key(self, authorization: bytes) -> None:
        """Raises ApiError 401 unless this is "Bearer " and the key, where one is required."""
        if self.api_key is None:
            return
        # Constant time: how long it takes tells nothing of how much of a guess is right.
        if not hmac.compare_digest(authorization, b"Bearer " + self.api_key.encode()):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    @contextmanager
    def work(self) -> Iterator[None]:
        """The time of one generation request. Raises ApiError 503 while none can be taken."""
        if reason := self.why_not_ready:
            raise ApiError(503, reason, code="not_ready")
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1

    def require_model(self) -> ServedModel:
        """The model, for an end point that needs it. Raises ApiError 503 while there is none."""
        if self.model is None:
            raise ApiError(503, self.phase.value, code="not_ready")
        return self.model


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)
