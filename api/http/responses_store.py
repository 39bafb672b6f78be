"""Responses that may be asked for again, or gone on from, while they are remembered.

They are kept in memory, the latest ones, within a bound on their number and their bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.api.http.errors import ApiError

if TYPE_CHECKING:
    from hasten.api.http.messages import ChatMessage

MAX_RESPONSES = 1000
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer as it was sent, and the conversation up to it, instructions apart."""

    body: bytes
    messages: tuple[ChatMessage, ...]

    @property
    def num_bytes(self) -> int:
        return len(self.body) + sum(len(str(message.content)) for message in self.messages)


class ResponseStore:
    """The latest responses, by id."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response_id: str, response: StoredResponse) -> None:
        """Remember a new response, and forget the oldest where there are too many."""
        self._stored[response_id] = response
        self._num_bytes += response.num_bytes
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            _, forgotten = self._stored.popitem(last=False)
            self._num_bytes -= forgotten.num_bytes

    def get(self, response_id: str, param: str | None = None) -> StoredResponse:
        """Raises ApiError 404; `param` is the field that named it."""
        stored = self._stored.get(response_id)
        if stored is None:
            reason = f"there is no response {response_id!r}, or it is no longer remembered"
            raise ApiError(404, reason, param=param, code="response_not_found")
        return stored

    def delete(self, response_id: str) -> None:
        """Raises ApiError 404."""
        self._num_bytes -= self.get(response_id).num_bytes
        del self._stored[response_id]
