"""The paged KV cache's bookkeeping: which block holds which tokens of which request.

Terms: a *block* holds the K and V of `block_size` consecutive tokens for all layers of one KV
group; a *block table* row lists a request's blocks in order. A request has one row, the same in
the table of every group.

    tokens      |<---------------- num_slots ---------------->|
    blocks      [ 0 | 0 | 7 | 3 | 9 | 12 ]      0: left behind by the group's window
                          ^ cached or forked blocks may be shared, so they are read only;
                            the block being written is always private (copy-on-write)

The life of a request here: `quote` what letting it in takes, `admit` it with that quote (blocks
found in the prefix cache or forked from a sibling are shared, the rest is reserved), `extend` it
step by step, `publish` what is full and accepted, `free` it. Blocks are taken when the tokens of a
step need them, never before.

Not here: what a block looks like in memory (the backends), who runs (`core.scheduler`). Exercised
by `pytest tests/unit/core/test_blocks.py tests/unit/core/test_blocks_machine.py`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.block_pool import NULL_BLOCK, BlockPool
from hasten.core.plan import BlockCopy
from hasten.core.prefix_hash import BlockHash, block_hash, root_hash

if TYPE_CHECKING:
    from hasten.core.request import Request, RequestId
    from hasten.kernels.backend import KVPlan
    from hasten.kernels.step import I32


@dataclass(frozen=True, slots=True)
class AdmissionQuote:
    """What letting a request in would take, as of now.

    It starts with `num_shared_tokens` computed: from the prefix cache, or, with `parent_id`, from
    a running sibling that is forked. `num_needed` free blocks of each group are taken or reserved.
    `next_hash` is where the match with the prefix cache ended.
    """

    request_id: RequestId
    num_shared_tokens: int
    num_needed: tuple[int, ...]
    parent_id: RequestId | None = None
    next_hash: BlockHash | None = None


@dataclass(slots=True, eq=False)
class _Held:
    """One request's blocks in one group; the first `num_behind` entries are the null block."""

    blocks: list[int] = field(default_factory=list)
    num_behind: int = 0
    num_reserved: int = 0

    def live(self) -> list[int]:
        return self.blocks[self.num_behind :] if self.num_behind else self.blocks


@dataclass(slots=True, eq=False)
class _Sequence:
    """What a running request holds. It catches up until `target` tokens are allocated."""

    request: Request
    row: int
    target: int
    held: tuple[_Held, ...]
    num_slots: int = 0
    num_published: int = 0
    is_tail_shared: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """A KV group: its blocks, its window, and copies that the next plan has to carry out."""

    pool: BlockPool
    window: int | None
    copies: dict[int, int] = field(default_factory=dict)  # destination -> source

    def first_readable(self, start: int, block_size: int) -> int:
        """The first block that a query at position `start` or later still reads."""
        return 0 if self.window is None else max(0, start - self.window + 1) // block_size


class BlockManager:
    """Block tables, prefix cache and reservations of all KV groups.

    `tables[group_id]` is [num_table_rows, max_blocks] int32 and changes in place; entries past a
    request's blocks are stale. `cache_root` names model and KV format (`prefix_hash.root_hash`);
    `max_chunk` bounds the tokens of one request in one step, and with it what windowed groups
    hold at once.
    """

    def __init__(
        self,
        plan: KVPlan,
        *,
        num_table_rows: int,
        max_model_len: int,
        max_chunk: int,
        cache_root: BlockHash | None = None,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.block_size = plan.block_size
        self.max_model_len = max_model_len
        self.enable_prefix_caching = enable_prefix_caching
        max_blocks = -(-max_model_len // plan.block_size)
        self.tables: tuple[I32, ...] = tuple(
            np.zeros((num_table_rows, max_blocks), np.int32) for _ in plan.groups
        )
        self._max_chunk = max_chunk
        self._root = root_hash(b"", b"") if cache_root is None else cache_root
        self._groups = tuple(
            _Group(BlockPool(count), spec.window)
            for count, spec in zip(plan.num_blocks, plan.groups, strict=True)
        )
        self._rows = list(range(num_table_rows - 1, -1, -1))
        self._sequences: dict[RequestId, _Sequence] = {}

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        """By group; blocks that only the prefix cache remembers are free."""
        return tuple(group.pool.num_free for group in self._groups)

    @property
    def num_usable_blocks(self) -> tuple[int, ...]:
        """By group, all blocks but the null block."""
        return tuple(group.pool.num_usable for group in self._groups)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._sequences

    def table_row(self, request_id: RequestId) -> int:
        """The request's row in every table. Raises KeyError when it holds nothing."""
        return self._sequences[request_id].row

    def num_blocks_held(self, request_id: RequestId) -> tuple[int, ...]:
        """By group, the blocks that the request refers to, shared ones included."""
        return tuple(len(held.live()) for held in self._sequences[request_id].held)

    def peak_blocks(self, num_tokens: int) -> tuple[int, ...]:
        """By group, the most blocks that a request of `num_tokens` holds at once."""
        return tuple(self._peak(group, num_tokens) for group in self._groups)

    def _peak(self, group: _Group, num_tokens: int) -> int:
        num_blocks = -(-num_tokens // self.block_size)
        if group.window is None:
            return num_blocks
        # A chunk of c tokens reads and writes w - 1 + c of them, wherever block borders fall.
        return min(num_blocks, (group.window + self._max_chunk - 2) // self.block_size + 2)

    # Admission ------------------------------------------------------------------------------

    def quote(self, request: Request, parent: Request | None = None) -> AdmissionQuote:
        """What letting `request` in takes: its tokens so far, less what it can share.

        `parent` is a running request with the same prompt, to fork where that shares more.
        """
        num_cached, next_hash = self._match(request)
        if parent is not None:
            position = request.num_prompt_tokens - 1
            if position >= num_cached * self.block_size and self._can_fork(parent, position):
                return self._quote_fork(request, parent, position)
        num_needed = []
        for group in self._groups:
            num_revived = group.pool.count_free(self._cached(group, request, num_cached))
            fresh = self._fresh(group, request.num_tokens, num_cached, num_revived)
            num_needed.append(num_revived + fresh)
        return AdmissionQuote(
            request.request_id,
            num_cached * self.block_size,
            tuple(num_needed),
            next_hash=next_hash,
        )

    def fits(self, quote: AdmissionQuote, num_spare: int = 0) -> bool:
        """Whether the quoted blocks are neither held nor reserved, and `num_spare` beside them."""
        return bool(self._rows) and all(
            needed + num_spare <= group.pool.num_free - group.pool.num_reserved
            for needed, group in zip(quote.num_needed, self._groups, strict=True)
        )

    def is_stale(self, quote: AdmissionQuote) -> bool:
        """Whether a block has been published since that would lengthen the quoted match."""
        return quote.next_hash is not None and all(
            group.pool.cached_block(quote.next_hash) is not None for group in self._groups
        )

    def admit(self, request: Request, quote: AdmissionQuote) -> None:
        """Give `request` a table row, share what was quoted and reserve the rest.

        Valid only with a quote made since the last change here, that `fits`.
        Modifies `request.num_computed_tokens`.
        """
        row = self._rows.pop()
        held = tuple(_Held() for _ in self._groups)
        sequence = _Sequence(request, row, request.num_tokens, held)
        self._sequences[request.request_id] = sequence
        num_blocks = -(-quote.num_shared_tokens // self.block_size)
        parent = None if quote.parent_id is None else self._sequences[quote.parent_id]
        for group_id, group in enumerate(self._groups):
            if parent is None:
                shared = self._cached(group, request, num_blocks)
            else:
                first = group.first_readable(quote.num_shared_tokens, self.block_size)
                shared = parent.held[group_id].blocks[first:num_blocks]
            num_revived = group.pool.count_free(shared)
            self._share(group_id, sequence, shared, num_blocks)
            fresh = self._fresh(group, request.num_tokens, num_blocks, num_revived)
            held[group_id].num_reserved = fresh
            group.pool.num_reserved += fresh
        sequence.num_slots = num_blocks * self.block_size
        sequence.num_published = quote.num_shared_tokens // self.block_size
        request.num_computed_tokens = quote.num_shared_tokens
        if parent is not None and quote.num_shared_tokens % self.block_size:
            self._share_tail(sequence, parent)

    def _share(
        self, group_id: int, sequence: _Sequence, shared: list[int], num_blocks: int
    ) -> None:
        """Make `shared` the last of the first `num_blocks` blocks; a window is past the others."""
        for block in shared:
            self._groups[group_id].pool.retain(block)
        held = sequence.held[group_id]
        held.num_behind = num_blocks - len(shared)
        held.blocks = [NULL_BLOCK] * held.num_behind + shared
        self.tables[group_id][sequence.row, :num_blocks] = held.blocks

    def _share_tail(self, child: _Sequence, parent: _Sequence) -> None:
        """Both may write into the same block next: whoever does first copies it."""
        child.is_tail_shared = parent.is_tail_shared = True
        for group, held in zip(self._groups, child.held, strict=True):
            held.num_reserved += 1
            group.pool.num_reserved += 1

    def _quote_fork(self, request: Request, parent: Request, position: int) -> AdmissionQuote:
        num_blocks = -(-position // self.block_size)
        num_copied = 1 if position % self.block_size else 0
        return AdmissionQuote(
            request.request_id,
            position,
            tuple(
                self._fresh(group, request.num_tokens, num_blocks) + num_copied
                for group in self._groups
            ),
            parent_id=parent.request_id,
        )

    def _can_fork(self, parent: Request, position: int) -> bool:
        """Whether the parent has computed that far and its windows have not moved on."""
        sequence = self._sequences.get(parent.request_id)
        if sequence is None or parent.num_computed_tokens < position:
            return False
        return all(
            held.num_behind <= group.first_readable(position, self.block_size)
            for group, held in zip(self._groups, sequence.held, strict=True)
        )

    def _fresh(
        self, group: _Group, num_tokens: int, num_shared_blocks: int, num_revived: int = 0
    ) -> int:
        """Blocks to reserve for a request that shares some and has to compute the rest.

        It gives the `num_revived` cached blocks that were free back when its window has passed.
        """
        num_missing = -(-num_tokens // self.block_size) - num_shared_blocks
        return min(num_missing, self._peak(group, num_tokens) - num_revived)

    # The prefix cache -----------------------------------------------------------------------

    def _match(self, request: Request) -> tuple[int, BlockHash | None]:
        """How many leading blocks every group still has, and the name of the next one.

        Never all of the request, so that its last token is always computed (there would be no
        logits otherwise) and is never written into a shared block.
        """
        if not (self.enable_prefix_caching and request.uses_prefix_cache):
            return 0, None
        limit = count = (request.num_tokens - 1) // self.block_size
        for group in self._groups:
            if group.window is None:
                count = self._match_full(group.pool, request, count)
        # What a window needs is not monotonous in the length, so all must agree on one length.
        settled = -1
        while settled != count:
            settled = count
            for group in self._groups:
                if group.window is not None:
                    count = self._match_window(group, request, count)
        return count, self._hash_at(request, count) if count < limit else None

    def _match_full(self, pool: BlockPool, request: Request, limit: int) -> int:
        for idx in range(limit):
            if pool.cached_block(self._hash_at(request, idx)) is None:
                return idx
        return limit

    def _match_window(self, group: _Group, request: Request, limit: int) -> int:
        """The largest count up to `limit` whose last blocks, as the window reads them, exist."""
        count = idx = limit
        while idx > group.first_readable(count * self.block_size, self.block_size):
            idx -= 1
            if group.pool.cached_block(self._hash_at(request, idx)) is None:
                count = idx
        return count

    def _cached(self, group: _Group, request: Request, num_blocks: int) -> list[int]:
        """The matched blocks that a request continuing after `num_blocks` reads in one group."""
        first = group.first_readable(num_blocks * self.block_size, self.block_size)
        blocks = map(group.pool.cached_block, request.block_hashes[first:num_blocks])
        return [block for block in blocks if block is not None]

    def _hash_at(self, request: Request, idx: int) -> BlockHash:
        chain, size = request.block_hashes, self.block_size
        while len(chain) <= idx:
            parent = chain[-1] if chain else self._root
            start = len(chain) * size
            tokens = request.token_ids[start : start + size]
            chain.append(block_hash(parent, tokens, request.cache_extra))
        return chain[idx]

    def publish(self, request: Request) -> None:
        """Let others match the request's blocks whose tokens are all computed and accepted."""
        sequence = self._sequences[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if not (self.enable_prefix_caching and request.uses_prefix_cache):
            return
        for idx in range(sequence.num_published, num_full):
            content = self._hash_at(request, idx)
            for group, held in zip(self._groups, sequence.held, strict=True):
                if idx >= held.num_behind:
                    group.pool.publish(held.blocks[idx], content)
        sequence.num_published = max(sequence.num_published, num_full)

    def clear_prefix_cache(self) -> None:
        """Forget every cached block that no running request holds."""
        for group in self._groups:
            group.pool.forget_free()

    # Growing and shrinking ------------------------------------------------------------------

    def extend(self, request_id: RequestId, end: int) -> bool:
        """Make slots [num_computed_tokens, end) writable; False, with nothing taken, if it cannot.

        Takes free blocks that are not reserved for others, and evicts cached ones if need be.
        """
        sequence = self._sequences[request_id]
        if end <= sequence.num_slots and not sequence.is_tail_shared:
            return True
        self._leave_behind(sequence)
        num_new = max(0, -(-end // self.block_size) - len(sequence.held[0].blocks))
        for group, held in zip(self._groups, sequence.held, strict=True):
            num_needed = num_new + self._copies_tail(group, sequence, held)
            if num_needed > group.pool.num_free - group.pool.num_reserved + held.num_reserved:
                return False
        self._take(sequence, num_new)
        return True

    def extend_for_drafts(self, request_id: RequestId, end: int) -> int:
        """Extend towards `end` with empty blocks only; returns how far slots are writable now.

        Speculation must not cost anybody a cached or a reserved block. Call it after `extend`
        for the tokens that are accepted, and after everybody else's.
        """
        sequence = self._sequences[request_id]
        if end <= sequence.num_slots:
            return end
        num_new = -(-end // self.block_size) - len(sequence.held[0].blocks)
        for group in self._groups:
            num_new = min(num_new, group.pool.num_empty - group.pool.num_reserved)
        if num_new > 0:
            self._take(sequence, num_new)
        return min(end, sequence.num_slots)

    def trim(self, request_id: RequestId, end: int) -> None:
        """Give back the blocks past position `end`, taken for drafts that were rejected."""
        sequence = self._sequences[request_id]
        num_blocks = -(-end // self.block_size)
        for group, held in zip(self._groups, sequence.held, strict=True):
            while len(held.blocks) > num_blocks:
                group.pool.release(held.blocks.pop())
        sequence.num_slots = len(sequence.held[0].blocks) * self.block_size

    def free(self, request_id: RequestId) -> None:
        """Give everything back, last block first, so that prefixes are evicted last."""
        sequence = self._sequences.pop(request_id)
        self._rows.append(sequence.row)
        for group, held in zip(self._groups, sequence.held, strict=True):
            group.pool.num_reserved -= held.num_reserved
            for block in reversed(held.live()):
                if group.pool.release(block) and group.copies:
                    self._drop_copy(group, block)

    def freed_by_preemption(self, request_id: RequestId) -> tuple[int, int]:
        """(blocks that preempting it would really free, tokens it would have to compute again).

        Blocks that others hold stay, and can be found again if they are published.
        """
        sequence = self._sequences[request_id]
        num_freed, num_kept = 0, len(sequence.held[0].blocks)
        for group, held in zip(self._groups, sequence.held, strict=True):
            live = held.live()
            num_single = group.pool.count_held_once(live)
            num_freed += num_single
            num_kept = min(num_kept, len(live) - num_single)
        num_kept = min(num_kept, sequence.num_published) if self.enable_prefix_caching else 0
        num_lost = sequence.request.num_computed_tokens - num_kept * self.block_size
        return num_freed, max(0, num_lost)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies that the step being planned has to carry out first; forgets them."""
        if not any(group.copies for group in self._groups):
            return ()
        copies = []
        for group_id, group in enumerate(self._groups):
            for destination, source in group.copies.items():
                copies.append(BlockCopy(group_id, source, destination))
                group.pool.release(source)
            group.copies.clear()
        return tuple(copies)

    def _take(self, sequence: _Sequence, num_new: int) -> None:
        """Take `num_new` blocks in every group, and a private tail where it is shared."""
        is_caught_up = sequence.num_slots + num_new * self.block_size >= sequence.target
        for group_id, (group, held) in enumerate(zip(self._groups, sequence.held, strict=True)):
            num_taken = num_new
            if self._copies_tail(group, sequence, held):
                self._copy_tail(group_id, sequence)
                num_taken += 1
            elif sequence.is_tail_shared and (idx := self._tail_idx(sequence)) < len(held.blocks):
                # Its other holders have let go, but its contents may still be cached.
                group.pool.withdraw(held.blocks[idx])
            if num_new:
                begin = len(held.blocks)
                held.blocks += [group.pool.take() for _ in range(num_new)]
                self.tables[group_id][sequence.row, begin : begin + num_new] = held.blocks[begin:]
            if held.num_reserved:
                used = held.num_reserved if is_caught_up else min(num_taken, held.num_reserved)
                held.num_reserved -= used
                group.pool.num_reserved -= used
        sequence.num_slots += num_new * self.block_size
        sequence.is_tail_shared = False

    def _tail_idx(self, sequence: _Sequence) -> int:
        """Which block the next computed token is written into."""
        return sequence.request.num_computed_tokens // self.block_size

    def _copies_tail(self, group: _Group, sequence: _Sequence, held: _Held) -> bool:
        if not sequence.is_tail_shared:
            return False
        idx = self._tail_idx(sequence)
        return idx < len(held.blocks) and group.pool.ref_count(held.blocks[idx]) > 1

    def _copy_tail(self, group_id: int, sequence: _Sequence) -> None:
        """Replace the shared tail by a copy of its own.

        The source keeps a reference until the copy is handed out, so that it is not taken for
        other tokens, nor made the destination of another copy, in the same plan.
        """
        group, held = self._groups[group_id], sequence.held[group_id]
        idx = self._tail_idx(sequence)
        shared, private = held.blocks[idx], group.pool.take()
        source = group.copies.get(shared, shared)
        group.pool.retain(source)
        group.copies[private] = source
        group.pool.release(shared)
        held.blocks[idx] = private
        self.tables[group_id][sequence.row, idx] = private

    def _drop_copy(self, group: _Group, destination: int) -> None:
        source = group.copies.pop(destination, None)
        if source is not None:
            group.pool.release(source)

    def _leave_behind(self, sequence: _Sequence) -> None:
        """Give back the blocks that no later query reads; while catching up they stay reserved."""
        start = sequence.request.num_computed_tokens
        for group_id, (group, held) in enumerate(zip(self._groups, sequence.held, strict=True)):
            first = min(group.first_readable(start, self.block_size), len(held.blocks))
            if first <= held.num_behind:
                continue
            num_freed = 0
            for idx in range(held.num_behind, first):
                num_freed += group.pool.release(held.blocks[idx])
                held.blocks[idx] = NULL_BLOCK
            self.tables[group_id][sequence.row, held.num_behind : first] = NULL_BLOCK
            held.num_behind = first
            if sequence.num_slots < sequence.target:
                self._reserve_again(group, sequence, held, num_freed)

    def _reserve_again(
        self, group: _Group, sequence: _Sequence, held: _Held, num_freed: int
    ) -> None:
        num_missing = -(-sequence.target // self.block_size) - len(held.blocks)
        num_kept = max(0, min(num_freed, num_missing - held.num_reserved))
        held.num_reserved += num_kept
        group.pool.num_reserved += num_kept

    # Proof ----------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Prove every invariant, in time proportional to everything. Raises AssertionError."""
        rows = [sequence.row for sequence in self._sequences.values()]
        assert sorted(rows + self._rows) == list(range(len(self.tables[0]))), "table rows"
        for group_id, group in enumerate(self._groups):
            references = Counter(group.copies.values())
            num_reserved = 0
            for sequence in self._sequences.values():
                held = sequence.held[group_id]
                self._check_held(group_id, sequence)
                references.update(held.live())
                num_reserved += held.num_reserved
            group.pool.check_integrity(references)
            assert num_reserved == group.pool.num_reserved, "reservations do not add up"
            assert num_reserved <= group.pool.num_free, "reserved blocks are not free"

    def _check_held(self, group_id: int, sequence: _Sequence) -> None:
        group, held = self._groups[group_id], sequence.held[group_id]
        name = sequence.request.request_id
        size = len(held.blocks)
        assert size * self.block_size == sequence.num_slots, f"{name}: slots"
        row = self.tables[group_id][sequence.row, :size]
        assert row.tolist() == held.blocks, f"{name}: table and blocks differ"
        assert not any(held.blocks[: held.num_behind]), f"{name}: holds what it left behind"
        assert NULL_BLOCK not in held.live(), f"{name}: reads the null block"
        first_written = sequence.request.num_computed_tokens // self.block_size
        for idx in range(held.num_behind, size):
            block, content = held.blocks[idx], group.pool.hash_of(held.blocks[idx])
            if idx < first_written:
                expected = (None, self._hash_at(sequence.request, idx))
                assert content in expected, f"block {block} is cached under a wrong name"
            elif idx > first_written or not sequence.is_tail_shared:
                assert group.pool.ref_count(block) == 1, f"block {block} is written and shared"
                assert content is None, f"block {block} is written and cached"
