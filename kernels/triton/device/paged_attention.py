"""The kernels of `kernels.triton.paged_attention`."""

from __future__ import annotations

import triton
import triton.language as tl
from hasten.kernels.triton.attention_plan import (
    ITEM_FIELDS,
    MERGE_FIELDS,
)
from hasten.kernels.triton.device.numbers import cast, dot, tanh, to_bf16

FLOOR: tl.constexpr = tl.constexpr(-1e30)  # the largest score of a row that has seen nothing
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
FIELDS: tl.constexpr = tl.constexpr(ITEM_FIELDS)
MERGED_FIELDS: tl.constexpr = tl.constexpr(MERGE_FIELDS)


@triton.jit
def _join(peak, norm, total, new_peak, new_norm, new_total):
    """Add one split (or tile) to those before it."""
    top = tl.maximum(peak, new_peak)
    before, after = tl.exp2(peak - top), tl.exp2(new_peak - top)
    norm = norm * before + new_norm * after
    total = total * before[:, None] + new_total * after[:, None]
    return top, norm, total


@triton.jit
def _store_rows(
    out, sinks, peak, norm, total, token, head, column, held,
    NUM_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Divide by the sum of weights, sinks included, and write a unit's rows."""
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2E
        top = tl.maximum(peak, sink)
        shrink = tl.exp2(peak - top)
        norm = norm * shrink + tl.exp2(sink - top)
        total = total * shrink[:, None]
    norm = tl.where(norm == 0.0, 1.0, norm)  # of lanes that no query fills
    pointers = out + (token.to(tl.int64) * NUM_HEADS + head)[:, None] * HEAD_SIZE + column[None, :]
    tl.store(pointers, cast(total / norm[:, None], out.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=["scale"])
def attention_kernel(
    qkv,
    cache,
    cache_scales,
    tables,  # [requests, TABLE_WIDTH]
    items,
    num_items,  # [1]
    sinks,
    out,
    partial,  # [rows, NUM_KV_HEADS, HEAD_SIZE] fp32
    partial_stats,  # [2, rows, NUM_KV_HEADS] fp32: peak, norm
    scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_HEAD: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    SOFTCAP: tl.constexpr,  # 0: none
    HAS_SINKS: tl.constexpr,
    IS_FP8: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    QKV_WIDTH: tl.constexpr = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_SIZE
    lane = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_HEAD)
    whole_head: tl.constexpr = HEAD_SIZE == BLOCK_HEAD
    for index in range(tl.program_id(0), tl.load(num_items) * NUM_KV_HEADS, tl.num_programs(0)):
        item = items + (index // NUM_KV_HEADS) * FIELDS
        kv_head = index % NUM_KV_HEADS
        num_tokens = tl.load(item + 1)
        table = tables + tl.load(item + 2) * TABLE_WIDTH
        first_position = tl.load(item + 3)
        partial_row = tl.load(item + 6)
        stop = first_position + num_tokens
        nth = tl.minimum(lane // GROUP_SIZE, num_tokens - 1)
        token = tl.load(item) + nth
        head = kv_head * GROUP_SIZE + lane % GROUP_SIZE
        held = (lane < num_tokens * GROUP_SIZE)[:, None] & (column < HEAD_SIZE)[None, :]
        position = first_position + nth
        start_of = token.to(tl.int64) * QKV_WIDTH + head * HEAD_SIZE
        query = tl.load(qkv + start_of[:, None] + column[None, :], mask=held, other=0.0)
        lowest = 0
        if WINDOW > 0:
            lowest = tl.maximum(first_position - WINDOW + 1, 0)
        peak = tl.full((BLOCK_ROWS,), FLOOR, tl.float32)
        norm = tl.zeros((BLOCK_ROWS,), tl.float32)
        total = tl.zeros((BLOCK_ROWS, BLOCK_HEAD), tl.float32)
        for split in range(tl.load(item + 4), tl.load(item + 5)):
            top = tl.full((BLOCK_ROWS,), FLOOR, tl.float32)
            mass = tl.zeros((BLOCK_ROWS,), tl.float32)
            acc = tl.zeros((BLOCK_ROWS, BLOCK_HEAD), tl.float32)
            first = tl.maximum(split * SPLIT, lowest // TILE * TILE)
            for at in range(first, tl.minimum(split * SPLIT + SPLIT, stop), TILE):
                key_at = at + tl.arange(0, TILE)
                readable = (key_at >= lowest) & (key_at < stop)
                block = tl.load(table + key_at // BLOCK_SIZE, mask=readable, other=0)
                slot = (block.to(tl.int64) * NUM_KV_HEADS + kv_head) * (2 * BLOCK_SIZE)
                slot += key_at % BLOCK_SIZE
                pointers = cache + slot[:, None] * HEAD_SIZE + column[None, :]
                inside = readable[:, None]
                if not whole_head:
                    inside = inside & (column < HEAD_SIZE)[None, :]
                keys = tl.load(pointers, mask=inside, other=0.0)
                values = tl.load(pointers + BLOCK_SIZE * HEAD_SIZE, mask=inside, other=0.0)
                if IS_FP8:
                    keys = to_bf16(keys.to(tl.float32))
                    values = to_bf16(values.to(tl.float32))
                scores = dot(query, tl.trans(keys), tl.zeros((BLOCK_ROWS, TILE), tl.float32))
                if IS_FP8:
                    key_scale = tl.load(cache_scales + slot, mask=readable, other=0.0)
                    scores = scores * key_scale.to(tl.float32)[None, :]
                scores = scores * scale
                if SOFTCAP > 0:
                    scores = tanh(scores / SOFTCAP) * SOFTCAP
                scores = scores * LOG2E
                seen = key_at[None, :] <= position[:, None]
                if WINDOW > 0:
                    seen = seen & (key_at[None, :] > position[:, None] - WINDOW)
                scores = tl.where(seen, scores, float("-inf"))
                highest = tl.maximum(top, tl.max(scores, axis=1))
                shrink = tl.exp2(top - highest)
                weights = tl.exp2(scores - highest[:, None])
                mass = mass * shrink + tl.sum(weights, axis=1)
                acc = acc * shrink[:, None]
                top = highest
                if IS_FP8:
                    value_scale = tl.load(
                        cache_scales + slot + BLOCK_SIZE, mask=readable, other=0.0
                    )
                    weights = weights * value_scale.to(tl.float32)[None, :]
                acc = dot(to_bf16(weights), values, acc)
            peak, norm, total = _join(peak, norm, total, top, mass, acc)
        if partial_row < 0:
            _store_rows(
                out, sinks, peak, norm, total, token, head, column, held,
                NUM_HEADS, HEAD_SIZE, HAS_SINKS,
            )  # fmt: skip
        else:
            own = (partial_row + lane) * NUM_KV_HEADS + kv_head
            used = lane < num_tokens * GROUP_SIZE
            tl.store(partial_stats + own, peak, mask=used)
            tl.store(partial_stats + PARTIAL_ROWS * NUM_KV_HEADS + own, norm, mask=used)
            tl.store(partial + own[:, None] * HEAD_SIZE + column[None, :], total, mask=held)


@triton.jit
def merge_kernel(
    merges,
    num_merges,  # [1]
    sinks,
    out,
    partial,
    partial_stats,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_HEAD: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PARTIAL_ROWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    lane = tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_HEAD)
    for index in range(tl.program_id(0), tl.load(num_merges) * NUM_KV_HEADS, tl.num_programs(0)):
        merge = merges + (index // NUM_KV_HEADS) * MERGED_FIELDS
        kv_head = index % NUM_KV_HEADS
        num_rows = tl.load(merge + 1) * GROUP_SIZE
        used = lane < num_rows
        held = used[:, None] & (column < HEAD_SIZE)[None, :]
        peak = tl.full((BLOCK_ROWS,), FLOOR, tl.float32)
        norm = tl.zeros((BLOCK_ROWS,), tl.float32)
        total = tl.zeros((BLOCK_ROWS, BLOCK_HEAD), tl.float32)
        for split in range(tl.load(merge + 3)):
            own = (tl.load(merge + 2) + split * num_rows + lane) * NUM_KV_HEADS + kv_head
            top = tl.load(partial_stats + own, mask=used, other=FLOOR)
            second = partial_stats + PARTIAL_ROWS * NUM_KV_HEADS
            mass = tl.load(second + own, mask=used, other=0.0)
            pointers = partial + own[:, None] * HEAD_SIZE + column[None, :]
            acc = tl.load(pointers, mask=held, other=0.0)
            peak, norm, total = _join(peak, norm, total, top, mass, acc)
        token = tl.load(merge) + lane // GROUP_SIZE
        head = kv_head * GROUP_SIZE + lane % GROUP_SIZE
        _store_rows(
            out, sinks, peak, norm, total, token, head, column, held,
            NUM_HEADS, HEAD_SIZE, HAS_SINKS,
        )  # fmt: skip
