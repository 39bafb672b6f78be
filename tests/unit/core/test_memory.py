"""The memory plan: arithmetic whose sums must come out, and refusals that say what to change."""

from __future__ import annotations

import dataclasses

import pytest
from hasten.core.memory import (
    DEFAULT_KV_CAP_BYTES,
    MIB,
    GroupSize,
    MemoryDemand,
    activation_bytes,
    plan_memory,
)
from hasten.core.options import ConfigurationError
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, Program, Rows
from hypothesis import given
from hypothesis import strategies as st

GIB = 2**30
BASE = MemoryDemand(
    weights_bytes=100 * MIB,
    activation_bytes=10 * MIB,
    available_bytes=16 * GIB,
    utilization=0.9,
    kv_cache_memory_bytes=None,
    groups=(GroupSize(block_bytes=368_640),),
    block_size=16,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    model_max_len=8192,
    max_model_len=None,
)


def demand(**changes: object) -> MemoryDemand:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]  # fields by name


def test_a_told_size_is_used_as_it_is() -> None:
    plan = plan_memory(demand(kv_cache_memory_bytes=513 * 368_640))
    assert plan.num_blocks == (513,)
    assert plan.num_kv_tokens == 512 * 16
    assert plan.kv_bytes == 513 * 368_640
    assert plan.max_model_len == 8192
    assert plan.max_concurrency == 1.0


def test_the_default_stops_at_its_cap() -> None:
    plan = plan_memory(BASE)
    assert DEFAULT_KV_CAP_BYTES - 368_640 < plan.kv_bytes <= DEFAULT_KV_CAP_BYTES


def test_not_more_than_all_requests_at_full_length_need() -> None:
    plan = plan_memory(demand(max_num_seqs=2, max_model_len=160))
    assert plan.num_blocks == (2 * 10 + 1,)
    assert plan.max_concurrency == 2.0


def test_the_share_of_free_memory_bounds_weights_activations_and_cache() -> None:
    plan = plan_memory(demand(available_bytes=GIB, utilization=0.5))
    total = plan.kv_bytes + plan.weights_bytes + plan.activation_bytes
    assert 0.5 * GIB - 368_640 < total <= 0.5 * GIB


def test_a_length_asked_for_may_take_more_than_the_default_cap() -> None:
    plan = plan_memory(demand(model_max_len=131_072, max_model_len=131_072))
    assert plan.max_model_len == 131_072
    assert plan.max_concurrency == 1.0


def test_without_a_length_the_longest_that_fits_is_taken() -> None:
    plan = plan_memory(demand(kv_cache_memory_bytes=11 * 368_640))
    assert plan.max_model_len == 160


def test_too_small_a_pool_names_both_remedies_with_numbers() -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan_memory(demand(kv_cache_memory_bytes=11 * 368_640, max_model_len=161))
    message = str(caught.value)
    assert "lower --max-model-len to at most 160" in message
    assert f"raise --kv-cache-memory-bytes to at least {12 * 368_640}" in message


def test_a_pool_without_a_single_block_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="holds 0 tokens"):
        plan_memory(demand(kv_cache_memory_bytes=1000))


def test_a_pool_beyond_free_memory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"1,024\.0 MiB\): only 1,023\.0 MiB of memory"):
        plan_memory(demand(kv_cache_memory_bytes=1 << 30, available_bytes=1023 << 20))


def test_no_memory_left_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="holds 0 tokens"):
        plan_memory(demand(available_bytes=50 * MIB))


def test_a_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="exceeds the model's own context of 8192"):
        plan_memory(demand(max_model_len=8193))


def test_a_windowed_group_holds_window_and_step_only() -> None:
    group = GroupSize(block_bytes=1, window=64)
    assert group.blocks_per_request(8192, 16, 2048) == (64 + 2048) // 16 + 1
    assert group.blocks_per_request(100, 16, 100) == 7


def test_groups_run_out_together() -> None:
    groups = (GroupSize(block_bytes=1000), GroupSize(block_bytes=3000, window=128))
    plan = plan_memory(demand(groups=groups, kv_cache_memory_bytes=10_000_000))
    full, windowed = (count - 1 for count in plan.num_blocks)
    needs = [group.blocks_per_request(8192, 16, 2048) for group in groups]
    assert full / needs[0] == pytest.approx(windowed / needs[1], rel=0.02)


@given(
    budget=st.integers(10_000, 10**9),
    sizes=st.lists(
        st.tuples(st.integers(100, 10**5), st.none() | st.integers(1, 5000)), min_size=1, max_size=3
    ),
    length=st.none() | st.integers(1, 4096),
)
def test_plans_keep_their_promises(
    budget: int, sizes: list[tuple[int, int | None]], length: int | None
) -> None:
    asked = demand(
        groups=tuple(GroupSize(size, window) for size, window in sizes),
        kv_cache_memory_bytes=budget,
        model_max_len=4096,
        max_model_len=length,
    )
    try:
        plan = plan_memory(asked)
    except ConfigurationError:
        return
    assert plan.kv_bytes <= budget
    used = sum(n * g.block_bytes for n, g in zip(plan.num_blocks, asked.groups, strict=True))
    assert used == plan.kv_bytes
    assert plan.max_concurrency >= 1.0
    step = min(plan.max_model_len, asked.max_num_batched_tokens)
    for count, group in zip(plan.num_blocks, asked.groups, strict=True):
        assert count - 1 >= group.blocks_per_request(plan.max_model_len, 16, step)


def test_activations_are_buffers_at_capacity() -> None:
    program = Program(vocab_size=100, kv_groups=())
    program.buffer("x", Rows.TOKENS, 8, DType.BF16)
    program.buffer("logits", Rows.LOGITS, 100, DType.F32)
    capacity = Capacity(max_tokens=32, max_requests=4, max_logit_rows=4, max_model_len=64)
    assert activation_bytes(program, capacity) == 32 * 8 * 2 + 4 * 100 * 4


def test_the_report_names_every_part() -> None:
    text = "\n".join(plan_memory(BASE).lines())
    for part in ("weights", "activations", "KV cache", "blocks of 16", "concurrency"):
        assert part in text
