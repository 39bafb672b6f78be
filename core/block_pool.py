"""The blocks of one KV group: who may take one, who shares one, what each still remembers.

    null block 0       never taken, never given back
    empty              nobody refers to it and it has nothing worth keeping: taken first
    cached, free       nobody refers to it, but its contents may be matched again: evicted, least
                       recently used first, once no empty block is left
    held               one or more requests refer to it

Reservations are promises: blocks that a request let in will still need, which nobody else may
take. Not here: tables, windows, what a request holds (`core.blocks`). Exercised by
`pytest tests/unit/core/test_blocks.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.core.prefix_hash import BlockHash

NULL_BLOCK = 0


class BlockPool:
    """Reference counts, the free list and the index of cached contents of one group.

    Every operation is O(1).
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and another one, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_reserved = 0
        self._ref_counts = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._empty = list(range(num_blocks - 1, NULL_BLOCK, -1))
        # An OrderedDict is a hash table over a doubly linked list: oldest first, O(1) removal.
        self._cached_free: OrderedDict[int, None] = OrderedDict()

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to, reserved ones included."""
        return len(self._empty) + len(self._cached_free)

    @property
    def num_empty(self) -> int:
        """Free blocks that can be taken without forgetting anything."""
        return len(self._empty)

    def states(self) -> bytes:
        """By block: 0 empty, 1 free but remembered, 2 held by one request, 3 by several."""
        states = bytearray(min(count, 2) + 1 if count else 0 for count in self._ref_counts)
        for block in self._cached_free:
            states[block] = 1
        return bytes(states[NULL_BLOCK + 1 :])

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def hash_of(self, block: int) -> BlockHash | None:
        """The contents that the block is matched by; None when it is not."""
        return self._hashes[block]

    def cached_block(self, content: BlockHash) -> int | None:
        """The block that holds these contents, free or held."""
        return self._block_of.get(content)

    def count_free(self, blocks: list[int]) -> int:
        """How many of `blocks` nobody refers to."""
        return list(map(self._ref_counts.__getitem__, blocks)).count(0)

    def count_held_once(self, blocks: list[int]) -> int:
        """How many of `blocks` would become free if one holder of them all let go."""
        return list(map(self._ref_counts.__getitem__, blocks)).count(1)

    def take(self) -> int:
        """A block with one reference, forgetting the least recently used contents if need be.

        Raises IndexError when no block is free.
        """
        if self._empty:
            block = self._empty.pop()
        elif self._cached_free:
            block, _ = self._cached_free.popitem(last=False)
            self._forget(block)
        else:
            raise IndexError("no free block")
        self._ref_counts[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more reference to a held or cached block."""
        if self._ref_counts[block] == 0:
            del self._cached_free[block]
        self._ref_counts[block] += 1

    def release(self, block: int) -> bool:
        """One reference less; whether that made the block free."""
        self._ref_counts[block] -= 1
        if self._ref_counts[block] > 0:
            return False
        if self._hashes[block] is None:
            self._empty.append(block)
        else:
            self._cached_free[block] = None
        return True

    def publish(self, block: int, content: BlockHash) -> None:
        """Let a held block be matched by its contents.

        Where another block has the same contents already that one stays the one to match.
        """
        if self._hashes[block] is None and content not in self._block_of:
            self._hashes[block] = content
            self._block_of[content] = block

    def withdraw(self, block: int) -> None:
        """The contents of a held block are about to change: match it no longer."""
        if self._hashes[block] is not None:
            self._forget(block)

    def check_integrity(self, references: Mapping[int, int]) -> None:
        """Prove the invariants, given how often each block is referred to from outside.

        Raises AssertionError naming the blocks.
        """
        free = {*self._empty, *self._cached_free}
        assert len(free) == self.num_free, "a block is in the free lists twice"
        assert NULL_BLOCK not in free, "the null block is free"
        assert NULL_BLOCK not in references, "somebody refers to the null block"
        counts = dict(enumerate(self._ref_counts))
        held = {block: count for block, count in counts.items() if count}
        assert held == references, (
            f"blocks are counted otherwise than referred to: {held.items() ^ references.items()}"
        )
        unheld = counts.keys() - held.keys() - {NULL_BLOCK}
        assert free == unheld, f"blocks are free and held, or neither: {free ^ unheld}"
        hashes = self._hashes
        assert not any(hashes[block] for block in self._empty), "an empty block has contents"
        assert all(hashes[block] for block in self._cached_free), "a cached block has none"
        named = {content: block for block, content in enumerate(hashes) if content is not None}
        assert named == self._block_of, "index and blocks disagree about contents"
        assert self.num_reserved >= 0, "more was taken of the reserve than was promised"

    def _forget(self, block: int) -> None:
        content = self._hashes[block]
        assert content is not None
        del self._block_of[content]
        self._hashes[block] = None
