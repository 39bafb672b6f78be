"""The prefix cache: which leading blocks of a request are in memory already.

Blocks are named by a hash chain (`core.prefix_hash`), and their contents stay matchable as long as
their pool remembers them (`core.block_pool`). Exercised by `pytest tests/unit/core/test_blocks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.prefix_hash import extend_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.kv_group import Holding, KVGroup
    from hasten.core.prefix_hash import BlockHash
    from hasten.core.request import Request

NAMED_AT_ONCE = 64
"""Blocks hashed before the next look into the cache."""


class PrefixCache:
    """Names blocks, finds them and makes them findable, in all KV groups alike."""

    def __init__(
        self, groups: Sequence[KVGroup], block_size: int, root: BlockHash, *, is_enabled: bool
    ) -> None:
        self._groups = groups
        self._unwindowed = [group for group in groups if group.window is None]
        self._windowed = [group for group in groups if group.window is not None]
        self._block_size = block_size
        self._root = root
        self._is_enabled = is_enabled

    def serves(self, request: Request) -> bool:
        """Whether the request may find blocks, and leave some to be found."""
        return self._is_enabled and request.uses_prefix_cache

    def match(self, request: Request) -> tuple[int, BlockHash | None]:
        """How many leading blocks every group still has, and the name of the next one.

        Never all of the request: its last token is always computed (there would be no logits
        otherwise) and is never written into a shared block.
        """
        if not self.serves(request):
            return 0, None
        limit = count = (request.num_tokens - 1) // self._block_size
        if self._unwindowed:
            count = self._match_unwindowed(request, limit)
        else:
            self.name_blocks(request, limit)
        # What a window needs does not grow evenly with the length: all must agree on one length.
        settled = -1
        while settled != count:
            settled = count
            for group in self._windowed:
                count = group.match_readable(request.block_hashes, count)
        return count, request.block_hashes[count] if count < limit else None

    def has(self, content: BlockHash) -> bool:
        """Whether every group has a block of this name."""
        return all(group.pool.cached_block(content) is not None for group in self._groups)

    def publish(self, request: Request, held: Sequence[Holding], begin: int, end: int) -> None:
        """Let others match blocks [begin, end) of `request`: computed, accepted, and `held`."""
        self.name_blocks(request, end)
        for idx in range(begin, end):
            content = request.block_hashes[idx]
            for group, holding in zip(self._groups, held, strict=True):
                if idx >= holding.num_behind:
                    group.pool.publish(holding.blocks[idx], content)

    def name_blocks(self, request: Request, num_blocks: int) -> None:
        """Extend the request's chain to its first `num_blocks` blocks."""
        extend_chain(
            request.block_hashes,
            num_blocks,
            request.token_ids,
            self._block_size,
            root=self._root,
            extra=request.cache_extra,
        )

    def _match_unwindowed(self, request: Request, limit: int) -> int:
        """How many leading blocks all groups without a window have.

        Blocks are named a few at a time: most prompts match little, and those that match nothing
        had better be named chunk by chunk while they are computed.
        """
        count, end = 0, min(limit, NAMED_AT_ONCE)
        while count < end:
            self.name_blocks(request, end)
            chain = request.block_hashes
            count = min(group.match_all(chain, count, end) for group in self._unwindowed)
            end = min(limit, count + NAMED_AT_ONCE) if count == end else count
        return count
