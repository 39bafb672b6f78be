"""Suffix speculation: like n-gram, but the texts of other requests are searched too.

It pays where requests resemble each other: agents, templates, the same question again. Source:
SuffixDecoding (Oliaro et al., 2024), of which this keeps the idea (match the end of a text with
all that was served, trust longer and more frequent matches) and not the tree.

Requests see each other's text only within one `cache_salt`, as with the prefix cache.

Memory is bounded in two generations per salt: texts are indexed in the young one; when it is full
it becomes the old one, and what was old is forgotten. A text that is still of use is repeated by
the requests that it serves, and so is young again: least recently used text goes first.

Pure. Exercised by `pytest tests/unit/spec/test_proposers.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.spec.compiled import TextIndex, draft_after
from hasten.spec.proposer import NO_DRAFT, Draft
from hasten.spec.text_index import CHAINED_LEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.request import Request, RequestId

MAX_TOKENS = 1 << 18
"""Tokens that all pools together index, about 200 bytes each."""

POOL_TOKENS = 8
"""What an empty pool counts for, so that many salts are bounded too."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A running request's text in the generation `index`."""

    index: TextIndex
    text_id: int
    num_indexed: int


class _Pool:
    """The texts of one salt."""

    def __init__(self) -> None:
        self.young = TextIndex()
        self.old = TextIndex()
        self.running: dict[RequestId, _Entry] = {}

    @property
    def num_tokens(self) -> int:
        return POOL_TOKENS + self.young.num_tokens + self.old.num_tokens

    def take(self, request: Request) -> _Entry:
        """Index what `request` has grown by; returns where its text is."""
        entry, tokens = self.running.get(request.request_id), request.token_ids
        if entry is not None and entry.index is self.young:
            entry.index.extend(entry.text_id)
            entry.num_indexed = len(tokens)
            return entry
        # A text that began in an older generation goes on where that one broke off.
        start = 0 if entry is None else max(entry.num_indexed - CHAINED_LEN, 0)
        text_id = self.young.add(tokens, start)
        entry = self.running[request.request_id] = _Entry(self.young, text_id, len(tokens))
        return entry

    def draft(self, entry: _Entry, depth: int) -> Draft:
        """How a text goes on, by the young texts and the old ones."""
        older = self.old if entry.index is self.young else None
        return draft_after(entry.index, entry.text_id, depth, older)

    def age(self) -> None:
        self.old, self.young = self.young, TextIndex()


class SuffixProposer:
    """One pool of texts per cache salt.

    Together they index at most `max_tokens`, or what the running requests hold if that is more:
    forgetting those would mean to index them again in the next step.
    """

    request_s = 30e-6

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.num_tokens = 0
        self._max_tokens = max_tokens
        self._pools: OrderedDict[bytes, _Pool] = OrderedDict()  # least recently used first
        self._salts: dict[RequestId, bytes] = {}

    def propose(self, requests: Sequence[Request], depths: Sequence[int]) -> list[Draft]:
        drafts = [
            self._draft(request, depth) if depth > 0 else NO_DRAFT
            for request, depth in zip(requests, depths, strict=True)
        ]
        if self.num_tokens > self._max_tokens:
            self._drop_idle_pools()
        return drafts

    def forget(self, request_id: RequestId) -> None:
        """The request's text stays, to be matched by others."""
        salt = self._salts.pop(request_id, None)
        if salt is not None:
            del self._pools[salt].running[request_id]

    def _draft(self, request: Request, depth: int) -> Draft:
        pool = self._pool_of(request)
        num_before = pool.num_tokens
        entry = pool.take(request)
        if pool.young.num_tokens > self._max_tokens // 2:
            pool.age()
        self.num_tokens += pool.num_tokens - num_before
        return pool.draft(entry, depth)

    def _pool_of(self, request: Request) -> _Pool:
        salt = self._salts[request.request_id] = request.cache_extra
        pool = self._pools.get(salt)
        if pool is None:
            pool = self._pools[salt] = _Pool()
            self.num_tokens += pool.num_tokens
        self._pools.move_to_end(salt)
        return pool

    def _drop_idle_pools(self) -> None:
        idle = [salt for salt, pool in self._pools.items() if not pool.running]
        for salt in idle:
            if self.num_tokens <= self._max_tokens:
                return
            self.num_tokens -= self._pools.pop(salt).num_tokens
