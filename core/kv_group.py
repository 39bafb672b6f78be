"""One KV group: its blocks, its block table, and what each running request holds there.

    blocks      [ 0 | 0 | 7 | 3 | 9 | 12 ]     one `Holding`, also the request's row of the table
                  ^^^^^   ^^^^^   ^
                  |       |       blocks taken for the request alone
                  |       shared: found in the prefix cache, or forked; read only
                  left behind: no later query's window reaches back so far

Windows: a query at position q reads positions (q - window, q]. A group without a window leaves
nothing behind. Positions, requests and hashes are `core.blocks`' business, which keeps all groups
in step. Exercised by `pytest tests/unit/core/test_blocks.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.block_pool import NULL_BLOCK, BlockPool
from hasten.core.plan import BlockCopy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hasten.core.forecast import I64
    from hasten.core.prefix_hash import BlockHash
    from hasten.kernels.step import I32


@dataclass(slots=True, eq=False)
class Holding:
    """One request's blocks in one group; the first `num_behind` are the null block.

    `num_reserved` free blocks of the pool are kept for it.
    """

    row: int
    blocks: list[int] = field(default_factory=list)
    num_behind: int = 0
    num_reserved: int = 0

    def live(self) -> list[int]:
        """The blocks that it refers to."""
        return self.blocks[self.num_behind :] if self.num_behind else self.blocks


@dataclass(slots=True, eq=False)
class KVGroup:
    """Blocks and block table of one group. `table` is [num_table_rows, max_blocks] int32.

    `max_chunk` is the most tokens of one request in one step.
    """

    pool: BlockPool
    table: I32
    block_size: int
    window: int | None
    max_chunk: int
    copies: dict[int, int] = field(default_factory=dict)  # destination -> source

    def first_readable(self, start: int) -> int:
        """The first block that a query at position `start` or later reads."""
        return 0 if self.window is None else max(0, start - self.window + 1) // self.block_size

    def peak(self, num_tokens: int) -> int:
        """The most blocks that a request of `num_tokens` holds at once."""
        num_blocks = -(-num_tokens // self.block_size)
        if self.window is None:
            return num_blocks
        # A chunk of c tokens touches w - 1 + c of them, wherever the block borders fall.
        return min(num_blocks, (self.window + self.max_chunk - 2) // self.block_size + 2)

    def held_at(self, num_tokens: I64) -> I64:
        """The blocks that decoding requests of these lengths hold."""
        num_blocks = -(-num_tokens // self.block_size)
        if self.window is None:
            return num_blocks
        return np.minimum(num_blocks, (self.window - 1) // self.block_size + 2)

    # The prefix cache

    def match_all(self, chain: list[BlockHash], begin: int, end: int) -> int:
        """How many leading blocks are cached, the first `begin` being so, looking up to `end`."""
        cached_block = self.pool.cached_block
        for idx in range(begin, end):
            if cached_block(chain[idx]) is None:
                return idx
        return end

    def match_readable(self, chain: list[BlockHash], limit: int) -> int:
        """The most leading blocks, up to `limit`, after which a request could go on here.

        Only the last of them have to be cached, as far as the window reaches back.
        """
        count = idx = limit
        while idx > self.first_readable(count * self.block_size):
            idx -= 1
            if self.pool.cached_block(chain[idx]) is None:
                count = idx
        return count

    def cached(self, chain: Sequence[BlockHash], num_blocks: int) -> list[int]:
        """The blocks that a request going on after `num_blocks` matched ones reads."""
        first = self.first_readable(num_blocks * self.block_size)
        blocks = map(self.pool.cached_block, chain[first:num_blocks])
        return [block for block in blocks if block is not None]

    # Admission

    def num_fresh(self, num_tokens: int, num_shared: int, num_revived: int) -> int:
        """Blocks to reserve for a request of `num_tokens` that shares its first `num_shared`.

        Of those, `num_revived` were free; they come back when its window has passed.
        """
        num_missing = -(-num_tokens // self.block_size) - num_shared
        return min(num_missing, self.peak(num_tokens) - num_revived)

    def admit(self, row: int, shared: list[int], num_shared: int, num_tokens: int) -> Holding:
        """Share `shared`, the last of the first `num_shared` blocks; reserve the others."""
        num_fresh = self.num_fresh(num_tokens, num_shared, self.pool.count_free(shared))
        for block in shared:
            self.pool.retain(block)
        num_behind = num_shared - len(shared)
        holding = Holding(row, [NULL_BLOCK] * num_behind + shared, num_behind)
        self.table[row, :num_shared] = holding.blocks
        self.reserve(holding, num_fresh)
        return holding

    def reserve(self, holding: Holding, count: int) -> None:
        """Keep `count` more blocks for the holder; a negative count lets some go."""
        holding.num_reserved += count
        self.pool.num_reserved += count

    # Growing and shrinking

    def num_available(self, holding: Holding) -> int:
        """Blocks that the holder may take: free, and not reserved for others."""
        return self.pool.num_free - self.pool.num_reserved + holding.num_reserved

    def take(self, holding: Holding, count: int) -> None:
        """Append `count` blocks, out of the holder's reserve as far as it goes."""
        begin = len(holding.blocks)
        holding.blocks += [self.pool.take() for _ in range(count)]
        self.table[holding.row, begin : begin + count] = holding.blocks[begin:]
        if holding.num_reserved:
            self.reserve(holding, -min(count, holding.num_reserved))

    def own(self, holding: Holding, idx: int) -> None:
        """Make a forked block writable: copy it, or keep it where nobody else holds it now.

        The source of a copy keeps a reference until the copy is handed out, so that in the same
        plan it is neither taken for other tokens nor made the destination of another copy.
        """
        shared = holding.blocks[idx]
        if self.pool.ref_count(shared) == 1:
            self.pool.withdraw(shared)
            return
        private = self.pool.take()
        source = self.copies.get(shared, shared)
        self.pool.retain(source)
        self.copies[private] = source
        self.pool.release(shared)
        holding.blocks[idx] = private
        self.table[holding.row, idx] = private

    def leave_behind(self, holding: Holding, first: int) -> int:
        """Drop the blocks before `first`; returns how many became free."""
        first = min(first, len(holding.blocks))
        if first <= holding.num_behind:
            return 0
        behind = slice(holding.num_behind, first)
        num_freed = sum(map(self.pool.release, holding.blocks[behind]))
        holding.blocks[behind] = [NULL_BLOCK] * (first - holding.num_behind)
        self.table[holding.row, behind] = NULL_BLOCK
        holding.num_behind = first
        return num_freed

    def trim(self, holding: Holding, num_blocks: int) -> None:
        """Give back the blocks after the first `num_blocks`; none of them is behind."""
        while len(holding.blocks) > num_blocks:
            self.pool.release(holding.blocks.pop())

    def release(self, holding: Holding) -> None:
        """Give everything back, last block first, so that prefixes are evicted last."""
        self.reserve(holding, -holding.num_reserved)
        for block in reversed(holding.live()):
            if self.pool.release(block) and block in self.copies:
                self.pool.release(self.copies.pop(block))

    def take_copies(self, group_id: int) -> list[BlockCopy]:
        """The copies to carry out before the step being planned; forgets them."""
        made = []
        for destination, source in self.copies.items():
            made.append(BlockCopy(group_id, source, destination))
            self.pool.release(source)
        self.copies.clear()
        return made

    # Proof

    def check_integrity(self, holdings: Iterable[Holding]) -> None:
        """Prove that blocks, holdings, table and reservations agree. Raises AssertionError."""
        references = Counter(self.copies.values())
        num_reserved = 0
        for holding in holdings:
            size, num_behind = len(holding.blocks), holding.num_behind
            assert self.table[holding.row, :size].tolist() == holding.blocks, "table row differs"
            assert not any(holding.blocks[:num_behind]), "what was left behind is held"
            live = holding.live()
            assert NULL_BLOCK not in live, "the null block stands for a live one"
            references.update(live)
            num_reserved += holding.num_reserved
        self.pool.check_integrity(dict(references))
        assert num_reserved == self.pool.num_reserved, "reservations do not add up"
        assert num_reserved <= self.pool.num_free, "reserved blocks are not free"
