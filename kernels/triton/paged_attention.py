"""`ops.PagedAttention`: one kernel for decode, verify, chunk and prompt, over a work list.

A fixed number of programs walk the items of `attention_plan`, so the grid does not depend on the
step. Per item: queries x heads of a group as 64 rows; for each split of the cache an online softmax
from zero over tiles of positions; then the split joins those before it. A unit whose splits went to
several programs is merged by a second kernel, with the same operations in the same order.

A row's bits depend on its own query and on what it sees: tiles and splits start at multiples of
their length from position 0, and one that a row sees nothing of leaves its sums as they are
(x * 1 + 0). An fp8 cache is unpacked to bf16, which is exact; K's scales multiply the scores and
V's the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
from hasten.kernels.dtypes import DType
from hasten.kernels.triton.attention_plan import (
    ITEM_FIELDS,
    MAX_PARTIAL_ROWS,
    MERGE_FIELDS,
    ROWS,
    SPLIT_LEN,
    Geometry,
    WorkList,
    plan_attention,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.step import StepBatch
    from hasten.kernels.triton.binding import Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.paged_attention import attention_kernel, merge_kernel


def supports(op: ops.PagedAttention, _weights: Mapping[WeightName, Weight]) -> str | None:
    if op.num_heads // op.num_kv_heads > ROWS:
        return f"{op.num_heads // op.num_kv_heads} heads share a KV head, more than {ROWS}"
    if op.head_size > 256:
        return f"heads of {op.head_size}, larger than 256"
    return None if op.qkv.dtype is DType.BF16 else f"queries of {op.qkv.dtype}, not bfloat16"


class _Work:
    """The work list of one geometry, planned once per step and read by all its layers."""

    def __init__(self, geometry: Geometry, binder: Binder) -> None:
        capacity = binder.capacity
        self._geometry = geometry
        self._num_programs = binder.num_programs
        # A request has at most one unit that is not full, and splits add at most one item per row.
        most = capacity.max_requests + -(-capacity.max_tokens // geometry.tokens_per_unit)
        self._items = binder.staged((most + MAX_PARTIAL_ROWS, ITEM_FIELDS))
        self._merges = binder.staged((most, MERGE_FIELDS))
        self._counts = binder.staged((2, 1))
        self._has_merges = False
        binder.before_step.append(self._plan)
        binder.variants.append(lambda: self._has_merges)

    @property
    def items(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._items.data, self._counts.data[0]

    @property
    def merges(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._merges.data, self._counts.data[1]

    def _plan(self, batch: StepBatch) -> None:
        self.upload(plan_attention(batch, self._geometry, self._num_programs))

    def upload(self, work: WorkList) -> None:
        self._items.put(work.items)
        self._merges.put(work.merges)
        self._counts.put(np.array([[len(work.items)], [len(work.merges)]], dtype=np.int32))
        self._has_merges = len(work.merges) > 0


def bind(op: ops.PagedAttention, binder: Binder) -> Kernel:
    qkv, out = binder.activation(op.qkv), binder.activation(op.out)
    geometry = Geometry.of(op)
    work: _Work = binder.once(("attention", geometry), lambda: _Work(geometry, binder))
    block_size = binder.kv_cache.plan.block_size
    max_blocks = -(-binder.capacity.max_model_len // block_size)
    tables = binder.step_input(
        ("tables", op.kv.group_id),
        (binder.capacity.max_requests, max_blocks),
        lambda batch: batch.groups[op.kv.group_id].block_tables[batch.table_rows, :max_blocks],
    )
    cache = binder.kv_cache.layer(op.kv)
    sinks = None if op.sinks is None else binder.vector(op.sinks)
    config = binder.table["attention"]
    binder.scratch("attention", MAX_PARTIAL_ROWS * op.num_kv_heads * op.head_size, torch.float32)
    binder.scratch("attention_stats", 2 * MAX_PARTIAL_ROWS * op.num_kv_heads, torch.float32)
    shape = {
        "NUM_HEADS": op.num_heads,
        "NUM_KV_HEADS": op.num_kv_heads,
        "HEAD_SIZE": op.head_size,
        "BLOCK_HEAD": max(16, triton.next_power_of_2(op.head_size)),
        "GROUP_SIZE": op.num_heads // op.num_kv_heads,
        "HAS_SINKS": sinks is not None,
        "PARTIAL_ROWS": MAX_PARTIAL_ROWS,
        "BLOCK_ROWS": ROWS,
    }

    def paged_attention() -> None:
        scratch = binder.get_scratch("attention"), binder.get_scratch("attention_stats")
        ends = (cache.data if sinks is None else sinks, out.data, *scratch)
        binder.launch(
            attention_kernel,
            (binder.num_programs,),
            qkv.data,
            cache.data,
            cache.scales,
            tables.data,
            *work.items,
            *ends,
            op.scale,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            BLOCK_SIZE=block_size,
            TABLE_WIDTH=max_blocks,
            SPLIT=SPLIT_LEN,
            WINDOW=op.window or 0,
            SOFTCAP=op.softcap or 0.0,
            IS_FP8=cache.is_fp8,
            TILE=config.block_in,
            **shape,
        )
        if binder.variant:
            binder.launch(
                merge_kernel, (binder.num_programs,), *work.merges, *ends, num_warps=16, **shape
            )

    return paged_attention
