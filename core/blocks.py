"""The paged KV cache's bookkeeping: which block holds which tokens of which request.

Terms: a *block* holds the K and V of `block_size` consecutive tokens for all layers of one KV
group; a *block table* row lists a request's blocks in order. A request has one row, the same in
the table of every group.

The life of a request here: `quote` what letting it in takes, `admit` it with that quote (blocks
found in the prefix cache or forked from a sibling are shared, the rest is reserved), `extend` it
step by step, `publish` what is full and accepted, `free` it. Blocks are taken when the tokens of a
step need them, never before.

    tokens   |<-- computed -->|<-- this step -->|
    slots    |<---------------- num_slots ----------------->|     extend(end): end <= num_slots
    blocks   [ shared | shared | private  | private | private ]
                               ^ the block written next is private: whoever forked it copies it

Not here: free lists and sharing (`core.block_pool`), windows (`core.kv_group`), what is found
in memory already (`core.prefix_cache`), what a block looks like there (the backends), who runs
(`core.scheduler`). Exercised by
`pytest tests/unit/core/test_blocks.py tests/unit/core/test_blocks_machine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.block_pool import BlockPool
from hasten.core.kv_group import Holding, KVGroup
from hasten.core.prefix_cache import PrefixCache
from hasten.core.prefix_hash import BlockHash, root_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.forecast import I64
    from hasten.core.plan import BlockCopy
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
class _Sequence:
    """A request that holds blocks: by group, as many entries in each.

    It has come with `target` tokens, for which blocks are reserved until they are taken.
    """

    request: Request
    row: int
    target: int
    held: tuple[Holding, ...]
    num_slots: int
    num_shared_tokens: int
    num_published: int
    is_tail_forked: bool = False


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
        max_blocks = -(-max_model_len // plan.block_size)
        self.tables: tuple[I32, ...] = tuple(
            np.zeros((num_table_rows, max_blocks), np.int32) for _ in plan.groups
        )
        self._groups = tuple(
            KVGroup(BlockPool(count), table, plan.block_size, spec.window, max_chunk)
            for count, table, spec in zip(plan.num_blocks, self.tables, plan.groups, strict=True)
        )
        root = root_hash(b"", b"") if cache_root is None else cache_root
        self._cache = PrefixCache(
            self._groups, plan.block_size, root, is_enabled=enable_prefix_caching
        )
        self._rows = list(range(num_table_rows - 1, -1, -1))
        self._sequences: dict[RequestId, _Sequence] = {}

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        """By group; blocks that only the prefix cache remembers are free."""
        return tuple(group.pool.num_free for group in self._groups)

    @property
    def num_unreserved(self) -> tuple[int, ...]:
        """By group, the free blocks that are promised to nobody."""
        return tuple(group.pool.num_free - group.pool.num_reserved for group in self._groups)

    @property
    def num_usable_blocks(self) -> tuple[int, ...]:
        """By group, all blocks but the null block."""
        return tuple(group.pool.num_usable for group in self._groups)

    def states(self) -> list[bytes]:
        """By group, what each block is (`BlockPool.states`)."""
        return [group.pool.states() for group in self._groups]

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._sequences

    def table_row(self, request_id: RequestId) -> int:
        """The request's row in every table. Raises KeyError when it holds nothing."""
        return self._sequences[request_id].row

    def num_blocks_held(self, request_id: RequestId) -> tuple[int, ...]:
        """By group, the blocks that the request refers to, shared ones included."""
        return tuple(len(holding.live()) for holding in self._sequences[request_id].held)

    def num_shared_tokens(self, request_id: RequestId) -> int:
        """Tokens that were computed already, in blocks of others, when the request was let in."""
        return self._sequences[request_id].num_shared_tokens

    def held_at(self, num_tokens: I64) -> I64:
        """[groups, ...]: blocks that decoding requests of these lengths hold, shared ones too."""
        return np.stack([group.held_at(num_tokens) for group in self._groups])

    def peak_blocks(self, num_tokens: int) -> tuple[int, ...]:
        """By group, the most blocks that a request of `num_tokens` holds at once."""
        return tuple(group.peak(num_tokens) for group in self._groups)

    # Admission ------------------------------------------------------------------------------

    def quote(self, request: Request, parent: Request | None = None) -> AdmissionQuote:
        """What letting `request` in takes: its tokens so far, less what it can share.

        `parent` has the same tokens up to `request.fork_position`: forked where that shares more.
        """
        num_blocks, next_hash = self._cache.match(request)
        position = request.fork_position
        if (
            parent is not None
            and position >= num_blocks * self.block_size
            and self._can_fork(parent, position)
        ):
            return self._quote_fork(request, parent, position)
        num_needed = []
        for group in self._groups:
            num_revived = group.pool.count_free(group.cached(request.block_hashes, num_blocks))
            num_fresh = group.num_fresh(request.num_tokens, num_blocks, num_revived)
            num_needed.append(num_revived + num_fresh)
        return AdmissionQuote(
            request.request_id,
            num_blocks * self.block_size,
            tuple(num_needed),
            next_hash=next_hash,
        )

    def fits(self, quote: AdmissionQuote, num_spare: int = 0) -> bool:
        """Whether the quoted blocks are free and not reserved, and `num_spare` more of each."""
        return bool(self._rows) and all(
            needed + num_spare <= num_unreserved
            for needed, num_unreserved in zip(quote.num_needed, self.num_unreserved, strict=True)
        )

    def is_stale(self, quote: AdmissionQuote) -> bool:
        """Whether a block has been published since that would lengthen the quoted match."""
        return quote.next_hash is not None and self._cache.has(quote.next_hash)

    def admit(self, request: Request, quote: AdmissionQuote) -> None:
        """Give `request` a table row, share what was quoted and reserve the rest.

        Valid only with a quote made since the last change here, that `fits`.
        Modifies `request.num_computed_tokens`.
        """
        num_tokens, start = request.num_tokens, quote.num_shared_tokens
        num_shared = -(-start // self.block_size)
        row = self._rows.pop()
        held = tuple(
            group.admit(row, shared, num_shared, num_tokens)
            for group, shared in zip(
                self._groups, self._shared(request, quote, num_shared), strict=True
            )
        )
        num_slots, num_published = num_shared * self.block_size, start // self.block_size
        sequence = _Sequence(request, row, num_tokens, held, num_slots, start, num_published)
        self._sequences[request.request_id] = sequence
        request.num_computed_tokens = start
        if start % self.block_size:
            sequence.is_tail_forked = True
            for group, holding in zip(self._groups, held, strict=True):
                group.reserve(holding, 1)

    def _shared(
        self, request: Request, quote: AdmissionQuote, num_shared: int
    ) -> Iterator[list[int]]:
        """By group, the blocks that the quote shares, from the first readable one on."""
        if quote.parent_id is None:
            for group in self._groups:
                yield group.cached(request.block_hashes, num_shared)
        else:
            held = self._sequences[quote.parent_id].held
            for group, holding in zip(self._groups, held, strict=True):
                first = group.first_readable(quote.num_shared_tokens)
                yield holding.blocks[first:num_shared]

    def _quote_fork(self, request: Request, parent: Request, position: int) -> AdmissionQuote:
        """Start at `position`, with a copy of the block around it when it lies inside one."""
        num_blocks = -(-position // self.block_size)
        num_copied = int(position % self.block_size > 0)
        num_needed = tuple(
            group.num_fresh(request.num_tokens, num_blocks, 0) + num_copied
            for group in self._groups
        )
        return AdmissionQuote(request.request_id, position, num_needed, parent.request_id)

    def _can_fork(self, parent: Request, position: int) -> bool:
        """Whether the parent has computed that far and its windows have not moved on."""
        sequence = self._sequences.get(parent.request_id)
        if sequence is None or parent.num_computed_tokens < position:
            return False
        return all(
            holding.num_behind <= group.first_readable(position)
            for group, holding in zip(self._groups, sequence.held, strict=True)
        )

    # The prefix cache -----------------------------------------------------------------------

    def publish(self, request: Request) -> None:
        """Let others match the request's blocks whose tokens are all computed and accepted."""
        if not self._cache.serves(request):
            return
        sequence = self._sequences[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        self._cache.publish(request, sequence.held, sequence.num_published, num_full)
        sequence.num_published = max(sequence.num_published, num_full)

    # Growing and shrinking ------------------------------------------------------------------

    def extend(self, request_id: RequestId, end: int) -> bool:
        """Make slots [num_computed_tokens, end) writable; False, with nothing taken, if it cannot.

        Takes free blocks that are not reserved for others, and evicts cached ones if need be.
        """
        sequence = self._sequences[request_id]
        if end <= sequence.num_slots and not sequence.is_tail_forked:
            return True
        self._leave_behind(sequence)
        num_new = max(0, -(-end // self.block_size) - len(sequence.held[0].blocks))
        num_needed = num_new + sequence.is_tail_forked
        for group, holding in zip(self._groups, sequence.held, strict=True):
            if num_needed > group.num_available(holding):
                return False
        if sequence.is_tail_forked:
            self._own_tail(sequence)
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
        if num_blocks * self.block_size >= sequence.num_slots:
            return
        for group, holding in zip(self._groups, sequence.held, strict=True):
            group.trim(holding, num_blocks)
        sequence.num_slots = num_blocks * self.block_size

    def free(self, request_id: RequestId) -> None:
        """Give everything back. Raises KeyError when the request holds nothing."""
        sequence = self._sequences.pop(request_id)
        self._rows.append(sequence.row)
        for group, holding in zip(self._groups, sequence.held, strict=True):
            group.release(holding)

    def freed_by_preemption(self, request_id: RequestId) -> tuple[int, int]:
        """(blocks that preempting it would really free, tokens it would have to compute again).

        Blocks that others hold stay, and can be found again if they are published.
        """
        sequence = self._sequences[request_id]
        num_freed, num_kept = 0, sequence.num_published
        for group, holding in zip(self._groups, sequence.held, strict=True):
            live = holding.live()
            num_single = group.pool.count_held_once(live)
            num_freed += num_single
            num_kept = min(num_kept, len(live) - num_single)
        num_computed = sequence.request.num_computed_tokens
        if not self._cache.serves(sequence.request):
            return num_freed, num_computed
        return num_freed, num_computed - num_kept * self.block_size

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies that the step being planned has to carry out first; forgets them."""
        copies: list[BlockCopy] = []
        for group_id, group in enumerate(self._groups):
            if group.copies:
                copies += group.take_copies(group_id)
        return tuple(copies)

    def _take(self, sequence: _Sequence, num_new: int) -> None:
        """Take `num_new` blocks in every group; what is reserved beyond the target is let go."""
        sequence.num_slots += num_new * self.block_size
        has_target = sequence.num_slots >= sequence.target
        for group, holding in zip(self._groups, sequence.held, strict=True):
            group.take(holding, num_new)
            if has_target and holding.num_reserved:
                group.reserve(holding, -holding.num_reserved)

    def _own_tail(self, sequence: _Sequence) -> None:
        idx = sequence.request.num_computed_tokens // self.block_size
        for group, holding in zip(self._groups, sequence.held, strict=True):
            group.own(holding, idx)
            group.reserve(holding, -1)
        sequence.is_tail_forked = False

    def _leave_behind(self, sequence: _Sequence) -> None:
        """Give back what no later query reads; until the target is reached it stays reserved."""
        start = sequence.request.num_computed_tokens
        for group, holding in zip(self._groups, sequence.held, strict=True):
            if group.window is None:
                continue
            num_freed = group.leave_behind(holding, group.first_readable(start))
            num_missing = -(-sequence.target // self.block_size) - len(holding.blocks)
            group.reserve(holding, max(0, min(num_freed, num_missing - holding.num_reserved)))

    # Proof ----------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Prove every invariant, in time proportional to everything. Raises AssertionError."""
        sequences = self._sequences.values()
        rows = [sequence.row for sequence in sequences]
        assert sorted(rows + self._rows) == list(range(len(self.tables[0]))), "rows are lost"
        for group_id, group in enumerate(self._groups):
            group.check_integrity(sequence.held[group_id] for sequence in sequences)
            written: set[int] = set()
            read: set[int] = set()
            for sequence in sequences:
                self._check_contents(group_id, sequence, read, written)
            assert not read & written, f"blocks are written and shared: {read & written}"

    def _check_contents(
        self, group_id: int, sequence: _Sequence, read: set[int], written: set[int]
    ) -> None:
        """Cached blocks have the right names, and nobody else's are written.

        A forked tail is neither read past the fork nor written before it is copied.
        """
        pool, request = self._groups[group_id].pool, sequence.request
        blocks = sequence.held[group_id].blocks
        assert len(blocks) * self.block_size == sequence.num_slots, f"{request.request_id}: slots"
        tail = request.num_computed_tokens // self.block_size
        self._cache.name_blocks(request, tail)
        for idx in range(sequence.held[group_id].num_behind, min(tail, len(blocks))):
            name = pool.hash_of(blocks[idx])
            assert name in {None, request.block_hashes[idx]}, f"block {blocks[idx]}: wrong name"
            read.add(blocks[idx])
        for block in blocks[tail + sequence.is_tail_forked :]:
            assert pool.hash_of(block) is None, f"block {block} is written and cached"
            assert block not in written, f"block {block} has two writers"
            written.add(block)
