"""Blocks: what is shared, what is evicted, what a window keeps, and that a fault is noticed."""

from __future__ import annotations

import pytest
from hasten.core.block_pool import BlockPool
from hasten.core.blocks import BlockManager
from hasten.core.plan import BlockCopy
from hasten.core.prefix_hash import BlockHash, extend_chain, root_hash
from hasten.core.request import Request
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.simulation import kv_plan, make_request

SIZE = 4


def manager(
    num_blocks: int = 17,
    windows: tuple[int | None, ...] = (None,),
    *,
    enable_prefix_caching: bool = True,
) -> BlockManager:
    return BlockManager(
        kv_plan(windows, num_blocks, SIZE),
        num_table_rows=4,
        max_model_len=64,
        max_chunk=16,
        enable_prefix_caching=enable_prefix_caching,
    )


def admit(blocks: BlockManager, request: Request, parent: Request | None = None) -> int:
    """Let `request` in; returns what it shares."""
    quote = blocks.quote(request, parent)
    assert blocks.fits(quote)
    blocks.admit(request, quote)
    blocks.check_integrity()
    return quote.num_shared_tokens


def compute(blocks: BlockManager, request: Request, end: int | None = None) -> None:
    """Compute up to `end` (default: all its tokens)."""
    end = request.num_tokens if end is None else end
    assert blocks.extend(request.request_id, end)
    blocks.take_copies()
    request.num_computed_tokens = end
    blocks.publish(request)
    blocks.check_integrity()


def row(blocks: BlockManager, request: Request, count: int, group_id: int = 0) -> list[int]:
    table: list[int] = blocks.tables[group_id][blocks.table_row(request.request_id)].tolist()
    return table[:count]


def test_blocks_are_taken_late() -> None:
    blocks = manager()
    request = make_request("a", tuple(range(12)))
    admit(blocks, request)
    assert blocks.num_free_blocks == (16,)
    compute(blocks, request, 5)
    assert blocks.num_free_blocks == (14,)
    compute(blocks, request)
    assert blocks.num_free_blocks == (13,)


def test_a_reservation_is_nobody_elses() -> None:
    blocks = manager(num_blocks=6)
    first, second = make_request("a", (1,) * 12), make_request("b", (2,) * 12)
    admit(blocks, first)
    assert not blocks.fits(blocks.quote(second))
    small = make_request("c", (3,) * 8)
    admit(blocks, small)
    compute(blocks, small)
    assert not blocks.extend(small.request_id, 9), "it took what is reserved"
    compute(blocks, first)
    blocks.free(first.request_id)
    assert blocks.extend(small.request_id, 9)


def test_a_prefix_is_shared_but_never_the_last_token() -> None:
    blocks = manager()
    first = make_request("a", tuple(range(8)))
    admit(blocks, first)
    compute(blocks, first)
    same, longer = make_request("b", tuple(range(8))), make_request("c", (*range(8), 9))
    assert admit(blocks, same) == 4
    assert admit(blocks, longer) == 8
    assert row(blocks, longer, 2) == row(blocks, first, 2)
    assert row(blocks, same, 1) == row(blocks, first, 1)


def test_a_block_is_found_only_once_it_is_full_and_accepted() -> None:
    blocks = manager()
    first = make_request("a", tuple(range(8)))
    admit(blocks, first)
    compute(blocks, first, 7)
    assert blocks.quote(make_request("b", tuple(range(9)))).num_shared_tokens == 4
    compute(blocks, first)
    assert blocks.quote(make_request("b", tuple(range(9)))).num_shared_tokens == 8


def test_extras_and_roots_keep_caches_apart() -> None:
    blocks = manager()
    first, salted = make_request("a", tuple(range(9))), make_request("b", tuple(range(9)))
    salted.cache_extra = b"salt"
    admit(blocks, first)
    compute(blocks, first)
    assert blocks.quote(salted).num_shared_tokens == 0
    assert root_hash(b"m", b"bf16") != root_hash(b"m", b"fp8")
    assert root_hash(b"ab", b"c") != root_hash(b"a", b"bc")


def test_a_chain_grows_by_whole_blocks() -> None:
    root = root_hash(b"m", b"bf16")
    at_once: list[BlockHash] = []
    extend_chain(at_once, 4, list(range(19)), SIZE, root=root, extra=b"")
    piecewise: list[BlockHash] = []
    for count in (1, 1, 3, 4):
        extend_chain(piecewise, count, list(range(19)), SIZE, root=root, extra=b"")
        assert len(piecewise) == count
    assert piecewise == at_once
    assert len(set(at_once)) == 4
    other: list[BlockHash] = []
    extend_chain(other, 4, [1, 0, *range(2, 19)], SIZE, root=root, extra=b"")
    assert not set(other) & set(at_once), "a change at the start renames all that follows"


def test_prefixes_survive_longest_and_the_oldest_use_goes_first() -> None:
    blocks = manager(num_blocks=7)
    old, new = make_request("a", (1,) * 9), make_request("b", (2,) * 9)
    for request in (old, new):
        admit(blocks, request)
        compute(blocks, request)
        blocks.free(request.request_id)
    assert blocks.num_free_blocks == (6,)
    other = make_request("c", (3,) * 12)
    admit(blocks, other)
    compute(blocks, other)
    # Two blocks were empty, so one was evicted: the tail of the one freed first.
    assert blocks.quote(make_request("d", (1,) * 9)).num_shared_tokens == 4
    assert blocks.quote(make_request("d", (2,) * 9)).num_shared_tokens == 8


def test_a_match_makes_blocks_recently_used() -> None:
    blocks = manager(num_blocks=5)
    first, second = make_request("a", (1,) * 5), make_request("b", (2,) * 5)
    for request in (first, second):
        admit(blocks, request)
        compute(blocks, request)
        blocks.free(request.request_id)
    again = make_request("c", (1,) * 5)
    assert admit(blocks, again) == 4
    compute(blocks, again)
    blocks.free(again.request_id)
    filler = make_request("d", (3,) * 12)
    admit(blocks, filler)
    compute(blocks, filler)
    assert blocks.quote(make_request("e", (1,) * 5)).num_shared_tokens == 4
    assert blocks.quote(make_request("e", (2,) * 5)).num_shared_tokens == 0


def test_scored_prompts_neither_use_nor_feed_the_cache() -> None:
    blocks = manager()
    scored = make_request("a", tuple(range(9)), prompt_logprobs=0)
    admit(blocks, scored)
    compute(blocks, scored)
    plain = make_request("b", tuple(range(9)))
    assert admit(blocks, plain) == 0
    compute(blocks, plain)
    assert (
        blocks.quote(make_request("c", tuple(range(9)), prompt_logprobs=0)).num_shared_tokens == 0
    )


def test_prefix_caching_can_be_off() -> None:
    blocks = manager(enable_prefix_caching=False)
    first = make_request("a", tuple(range(9)))
    admit(blocks, first)
    compute(blocks, first)
    assert admit(blocks, make_request("b", tuple(range(9)))) == 0
    blocks.free(first.request_id)
    assert blocks.num_free_blocks == blocks.num_usable_blocks


@pytest.mark.parametrize("num_prompt_tokens", [1, 4, 5, 6, 9])
def test_a_fork_shares_all_but_the_last_prompt_token(num_prompt_tokens: int) -> None:
    blocks = manager(enable_prefix_caching=False)
    prompt = tuple(range(num_prompt_tokens))
    parent = make_request("a", prompt, n=2)
    admit(blocks, parent)
    compute(blocks, parent)
    child = make_request("a", prompt, n=2, sample_idx=1)
    position = num_prompt_tokens - 1
    assert admit(blocks, child, parent) == position
    assert blocks.extend(child.request_id, num_prompt_tokens)
    copies = blocks.take_copies()
    tail = position // SIZE
    assert row(blocks, child, tail) == row(blocks, parent, tail)
    source, destination = row(blocks, parent, tail + 1)[-1], row(blocks, child, tail + 1)[-1]
    assert source != destination
    assert copies == ((BlockCopy(0, source, destination),) if position % SIZE else ())
    blocks.check_integrity()


def test_a_fork_whose_parent_has_gone_writes_without_a_copy() -> None:
    blocks = manager()
    parent = make_request("a", tuple(range(7)), n=2)
    admit(blocks, parent)
    compute(blocks, parent)
    parent.token_ids += [7, 8]
    compute(blocks, parent)
    child = make_request("a", tuple(range(7)), n=2, sample_idx=1)
    assert admit(blocks, child, parent) == 6
    blocks.free(parent.request_id)
    num_free = blocks.num_free_blocks
    assert blocks.extend(child.request_id, 7)
    assert blocks.take_copies() == ()
    assert blocks.num_free_blocks == num_free
    # The block was cached as (4, 5, 6, 7), which the child is about to overwrite.
    assert blocks.quote(make_request("b", tuple(range(9)))).num_shared_tokens == 4
    blocks.check_integrity()


def test_a_copy_ends_with_the_request_it_was_for() -> None:
    blocks = manager()
    parent = make_request("a", tuple(range(7)), n=2)
    admit(blocks, parent)
    compute(blocks, parent)
    child = make_request("a", tuple(range(7)), n=2, sample_idx=1)
    admit(blocks, child, parent)
    assert blocks.extend(child.request_id, 7)
    blocks.free(child.request_id)
    blocks.free(parent.request_id)
    assert blocks.take_copies() == ()
    blocks.check_integrity()
    assert blocks.num_free_blocks == blocks.num_usable_blocks


def test_a_window_keeps_what_it_can_still_read() -> None:
    blocks = manager(windows=(None, 6))
    request = make_request("a", tuple(range(40)))
    admit(blocks, request)
    for end in (16, 32, 40):
        compute(blocks, request, end)
    # Position 32 reads from 27 on, which lies in block 6.
    assert row(blocks, request, 7, group_id=1)[:6] == [0] * 6
    assert blocks.num_blocks_held(request.request_id) == (10, 4)
    assert 0 not in row(blocks, request, 10)


def test_a_match_needs_only_what_the_windows_read() -> None:
    blocks = manager(num_blocks=30, windows=(None, 6))
    request = make_request("a", tuple(range(40)))
    admit(blocks, request)
    for end in (16, 32, 40):
        compute(blocks, request, end)
    blocks.free(request.request_id)
    again = make_request("b", tuple(range(40)))
    assert admit(blocks, again) == 36
    assert row(blocks, again, 9, group_id=1)[:7] == [0] * 7
    assert blocks.num_blocks_held(again.request_id) == (9, 2)


def is_readable(blocks: BlockManager, request: Request, count: int) -> bool:
    """Whether every group still has what a query after `count` cached blocks reads."""
    for group in blocks._groups:
        window = group.window or 10**6
        for idx in range(count):
            is_read = (idx + 1) * SIZE > count * SIZE - window + 1
            if is_read and group.pool.cached_block(request.block_hashes[idx]) is None:
                return False
    return True


@given(
    windows=st.lists(st.sampled_from([None, 2, 5, 9]), min_size=1, max_size=3),
    lost=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12),
)
def test_the_longest_prefix_that_all_groups_can_read(
    windows: list[int | None], lost: list[tuple[int, int]]
) -> None:
    """Against trying every length, with any blocks forgotten."""
    blocks = manager(num_blocks=60, windows=tuple(windows))
    request = make_request("a", tuple(range(42)))
    admit(blocks, request)
    for end in range(4, 44, 4):
        compute(blocks, request, min(end, 42))
    blocks.free(request.request_id)
    for group_id, idx in lost:
        pool = blocks._groups[group_id % len(windows)].pool
        block = pool.cached_block(request.block_hashes[idx % len(request.block_hashes)])
        if block is not None:
            pool.retain(block)
            pool.withdraw(block)
            pool.release(block)
    again = make_request("b", request.prompt_token_ids)
    again.block_hashes = request.block_hashes
    best = max(count for count in range(11) if is_readable(blocks, again, count))
    assert admit(blocks, again) == best * SIZE


def test_drafts_get_empty_blocks_only() -> None:
    blocks = manager(num_blocks=5)
    first = make_request("a", (1,) * 9)
    admit(blocks, first)
    compute(blocks, first)
    blocks.free(first.request_id)  # two cached blocks, two empty ones
    second = make_request("b", (2,) * 4)
    admit(blocks, second)
    compute(blocks, second)
    assert blocks.extend_for_drafts(second.request_id, 14) == 8
    assert blocks.quote(make_request("c", (1,) * 9)).num_shared_tokens == 8
    blocks.trim(second.request_id, 5)
    assert blocks.num_blocks_held(second.request_id) == (2,)
    blocks.trim(second.request_id, 4)
    assert blocks.num_blocks_held(second.request_id) == (1,)
    blocks.check_integrity()


def test_a_pool_has_room_for_more_than_the_null_block() -> None:
    with pytest.raises(ValueError, match="null block"):
        BlockPool(1)
    pool = BlockPool(2)
    assert pool.take() == 1
    with pytest.raises(IndexError, match="no free block"):
        pool.take()


def faulty_release(pool: BlockPool, block: int) -> bool:
    """A release that forgets to count."""
    return False


def test_a_forgotten_decrement_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = manager()
    request = make_request("a", tuple(range(9)))
    admit(blocks, request)
    compute(blocks, request)
    monkeypatch.setattr(BlockPool, "release", faulty_release)
    blocks.free(request.request_id)
    with pytest.raises(AssertionError, match="counted"):
        blocks.check_integrity()


def test_a_write_into_a_shared_block_is_noticed() -> None:
    blocks = manager()
    first, second = make_request("a", tuple(range(9))), make_request("b", tuple(range(9)))
    for request in (first, second):
        admit(blocks, request)
        compute(blocks, request)
    second.num_computed_tokens = 5
    with pytest.raises(AssertionError, match="is written and cached"):
        blocks.check_integrity()


def test_a_wrong_table_is_noticed() -> None:
    blocks = manager()
    request = make_request("a", tuple(range(9)))
    admit(blocks, request)
    compute(blocks, request)
    blocks.tables[0][blocks.table_row(request.request_id), 1] = 9
    with pytest.raises(AssertionError, match="table row"):
        blocks.check_integrity()
