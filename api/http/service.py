"""What the server is at this moment: loading, ready, draining or failed, and with which model."""

from __future__ import annotations

import enum
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from hasten.api.http.errors import ApiError, overloaded
from hasten.api.security.caller import Caller, calling
from hasten.api.security.keys import ANYBODY
from hasten.api.security.limits import KeyLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.api.http.metrics import Metrics
    from hasten.api.http.served_model import ServedModel
    from hasten.api.observability.request_log import RequestLog
    from hasten.api.observability.tracing import RequestTraces
    from hasten.api.security.keys import Key, Keyring
    from starlette.requests import Request


class Phase(enum.Enum):
    LOADING = "the model is still loading"
    READY = "ready"
    RESTARTING = "the engine has died and is being started again"
    DRAINING = "the server is shutting down"


@dataclass(slots=True)
class Service:
    """Shared by all end points of one server. `num_active` counts generation requests at work.

    `max_active` bounds them before they have been read; the engine's own queue is bounded later,
    when it is known what each asks for.
    """

    metrics: Metrics
    keyring: Keyring | None = None
    max_active: int | None = None
    request_log: RequestLog | None = None
    traces: RequestTraces | None = None
    phase: Phase = Phase.LOADING
    model: ServedModel | None = None
    num_active: int = field(default=0, init=False)
    key_limits: KeyLimits = field(default_factory=KeyLimits, init=False)

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

    def check_key(self, authorization: bytes) -> Key:
        """Whose key this is ("Bearer KEY"). Raises ApiError 401 where one is required and wrong."""
        if self.keyring is None:
            return ANYBODY
        key = self.keyring.find(authorization)
        if key is None:
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        return key

    @contextmanager
    def work(self, who: Caller | None = None) -> Iterator[None]:
        """The time of one generation request, asked for by `who`.

        Raises ApiError: 503 while none can be taken, 429 where there are too many.
        """
        who = who or Caller()
        if reason := self.why_not_ready:
            raise ApiError(503, reason, code="not_ready")
        self._begin(who.key)
        try:
            with calling(who):
                yield
        finally:
            self.num_active -= 1
            self.key_limits.end(who.key)
            self._record(who)

    def _record(self, who: Caller) -> None:
        """A request has ended."""
        self.metrics.count_request(who)
        if self.model is not None and self.request_log is not None:
            self.request_log.write(who, self.model.tokenizer)
        if self.model is not None and self.traces is not None:
            self.traces.write(who, self.model.name)

    def _begin(self, key: Key) -> None:
        if self.max_active is not None and self.num_active >= self.max_active:
            self.metrics.count_refusal(key.name, "overloaded")
            raise overloaded(f"{self.num_active} requests are being answered or wait", 1.0)
        exceeded = self.key_limits.begin(key, time.monotonic())
        if exceeded is not None:
            self.metrics.count_refusal(key.name, "rate_limit")
            raise overloaded(exceeded.message, exceeded.retry_after_s, "rate_limit_exceeded")
        self.num_active += 1

    def require_model(self) -> ServedModel:
        """The model, for an end point that needs it. Raises ApiError 503 while there is none."""
        if self.model is None:
            raise ApiError(503, self.phase.value, code="not_ready")
        return self.model


def service_of(request: Request) -> Service:
    return cast("Service", request.app.state.service)
