"""Requests with a grammar wait here until it is compiled, so that no step waits for that.

Does nothing for requests without one, and refuses those with one where the engine was built without
`Grammars`. Exercised by `pytest tests/unit/core/test_grammar_gate.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.core.messages import AddRequest
    from hasten.core.protocols import Grammars
    from hasten.core.request import Request, RequestId

logger = logging.getLogger(__name__)

WAIT_S = 0.01
"""How long an engine without other work waits at a time: aborts are heard in between."""


class GrammarGate:
    """What the engine loop asks of grammars, in terms of requests."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._held: dict[RequestId, Request] = {}

    def why_refused(self, added: AddRequest) -> tuple[str, str] | None:
        """The field that this engine cannot honour, and why."""
        if added.params.grammar and self._grammars is None:
            return "grammar", "this engine is built without structured output"
        return None

    def holds(self, request: Request) -> bool:
        """Whether a new request has to wait for its grammar: `release` gives it back."""
        if self._grammars is None or not request.params.grammar:
            return False
        self._grammars.prepare(request)
        self._held[request.request_id] = request
        return True

    def release(self) -> list[Request]:
        """The requests that need wait no longer, in their order of arrival."""
        if self._grammars is None or not self._held:
            return []
        released = [r for r in self._held.values() if self._grammars.is_ready(r.request_id)]
        for request in released:
            del self._held[request.request_id]
        return released

    def wait(self) -> None:
        """There is nothing to compute: wait a moment for a grammar, if any is being compiled."""
        if self._grammars is not None and self._held:
            self._grammars.wait(WAIT_S)

    def has_failed(self, request: Request) -> bool:
        """Whether the request has to end here, because its grammar gives no more masks."""
        if self._grammars is None or not request.params.grammar:
            return False
        failure = self._grammars.failure(request.request_id)
        if failure is not None:
            logger.warning("request %s: %s", request.group_id, failure)
        return failure is not None

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self._held.pop(request.request_id, None)
        if self._grammars is not None:
            self._grammars.forget(request.request_id)
