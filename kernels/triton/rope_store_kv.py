"""`ops.RopeStoreKV`: one program per some tokens and one head of q, k or v."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from hasten.kernels.triton.binding import warps_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt
    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.step import StepBatch
    from hasten.kernels.triton.binding import Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.rope_store_kv import rope_store_kv_kernel


def supports(op: ops.RopeStoreKV, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None if op.head_size <= 256 else f"heads of {op.head_size}, larger than 256"


def bind(op: ops.RopeStoreKV, binder: Binder) -> Kernel:
    qkv = binder.activation(op.qkv)
    cosines, sines = binder.once(("rope", op.rope), lambda: _angles(op.rope, binder))
    positions = binder.token_input("positions", lambda batch: batch.positions)
    slots = binder.token_input(("slots", op.kv.group_id), _slots_of(op.kv.group_id))
    q_norm = cosines if op.q_norm is None else binder.vector(op.q_norm)
    k_norm = cosines if op.k_norm is None else binder.vector(op.k_norm)
    cache = binder.kv_cache.layer(op.kv)
    static_k, static_v = op.kv_scales or (0.0, 0.0)
    block = triton.next_power_of_2(op.head_size)
    rows = binder.rows_per_program(block)

    def rope_store_kv() -> None:
        binder.launch(
            rope_store_kv_kernel,
            (-(-qkv.num_rows // rows), op.num_heads + 2 * op.num_kv_heads),
            qkv.data,
            positions.data,
            slots.data,
            cosines,
            sines,
            q_norm,
            k_norm,
            cache.data,
            cache.scales,
            op.norm_eps,
            static_k,
            static_v,
            qkv.num_rows,
            num_warps=warps_for(block * rows),
            NUM_HEADS=op.num_heads,
            NUM_KV_HEADS=op.num_kv_heads,
            HEAD_SIZE=op.head_size,
            HALF=op.rope.rotary_dim // 2,
            BLOCK_SIZE=binder.kv_cache.plan.block_size,
            NORM_Q=op.q_norm is not None,
            NORM_K=op.k_norm is not None,
            IS_FP8=cache.is_fp8,
            IS_STATIC=op.kv_scales is not None,
            BLOCK_HEAD=block,
            BLOCK_ROWS=rows,
        )

    return rope_store_kv


def _slots_of(group_id: int) -> Callable[[StepBatch], npt.NDArray[np.int32]]:
    return lambda batch: batch.groups[group_id].slot_mapping


def _angles(rope: ops.Rope, binder: Binder) -> tuple[torch.Tensor, torch.Tensor]:
    """The cos and sin of every position, [max_model_len, rotary_dim / 2] fp32."""
    positions = torch.arange(binder.capacity.max_model_len, dtype=torch.float32)
    table = torch.outer(positions, torch.tensor(rope.inv_freq, dtype=torch.float32))
    cosines, sines = table.cos() * rope.scale, table.sin() * rope.scale
    return cosines.to(binder.device), sines.to(binder.device)
