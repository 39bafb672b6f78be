"""N-gram speculation: a request's own prompt and output, searched for its last few tokens.

It pays where answers repeat their input: extraction, code edits, quoting. Source: prompt lookup
decoding (Saxena, 2023). Pure. Exercised by `pytest tests/unit/spec/test_proposers.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.spec.compiled import TextIndex, draft_after
from hasten.spec.proposer import NO_DRAFT, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.request import Request, RequestId


class NgramProposer:
    """One index per request."""

    request_s = 60e-6

    def __init__(self) -> None:
        self._indexes: dict[RequestId, TextIndex] = {}

    def propose(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        return [
            self._draft(request, depth) if depth > 0 else NO_DRAFT
            for request, depth in zip(requests, depths, strict=True)
        ]

    def forget(self, request_id: RequestId) -> None:
        self._indexes.pop(request_id, None)

    def _draft(self, request: Request, depth: int) -> Draft:
        index = self._indexes.get(request.request_id)
        if index is None:
            index = self._indexes[request.request_id] = TextIndex()
            index.add(request.token_ids)
        else:
            index.extend(0)
        return draft_after(index, 0, depth)
