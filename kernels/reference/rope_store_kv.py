"""`ops.RopeStoreKV` in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from hasten.kernels.reference.rms_norm import normalize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.step import StepBatch
    from hasten.kernels.weights import Weight


@dataclass(frozen=True, slots=True)
class Angles:
    """cos and sin of the step's positions, [T, 1, rotary_dim / 2] fp32, times the rope's scale."""

    cos: torch.Tensor
    sin: torch.Tensor


def supports(_op: ops.RopeStoreKV, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.RopeStoreKV, binder: Binder) -> Kernel:
    qkv = binder.activation(op.qkv)
    angles = binder.per_step(("angles", op.rope), _make_angles(op.rope, binder))
    slots = binder.per_step(("kv_rows", op.kv.group_id, op.num_kv_heads), _make_kv_rows(op, binder))
    norms = _head_norms(op, binder)
    cache = binder.kv_cache.layer(op.kv, op.kv_scales)
    num_rotated = op.num_heads + op.num_kv_heads
    num_all, head_size = num_rotated + op.num_kv_heads, op.head_size

    def rope_store_kv() -> None:
        heads = qkv.rows.view(-1, num_all, head_size)
        q_and_k = heads[:, :num_rotated]
        rotated = rotate(norms(q_and_k.float()), angles.value)
        q_and_k.copy_(rotated)
        k_and_v = torch.cat((heads[:, op.num_heads : num_rotated], heads[:, num_rotated:]), dim=-1)
        cache.store(slots.value, k_and_v.view(-1, 2 * head_size))

    return rope_store_kv


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Rotate the first columns of each head; x is [T, heads, head_size] fp32."""
    half = angles.cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat(
        (
            first * angles.cos - second * angles.sin,
            second * angles.cos + first * angles.sin,
            rest,
        ),
        dim=-1,
    )


def _make_angles(rope: ops.Rope, binder: Binder) -> Callable[[StepBatch], Angles]:
    positions = torch.arange(binder.capacity.max_model_len, dtype=torch.float32)
    table = torch.outer(positions, torch.tensor(rope.inv_freq, dtype=torch.float32))
    cos = (table.cos() * rope.scale).to(binder.device)
    sin = (table.sin() * rope.scale).to(binder.device)

    def make(batch: StepBatch) -> Angles:
        index = binder.index(batch.positions)
        return Angles(cos[index].unsqueeze(1), sin[index].unsqueeze(1))

    return make


def _make_kv_rows(op: ops.RopeStoreKV, binder: Binder) -> Callable[[StepBatch], torch.Tensor]:
    """Where the step's tokens go: rows of the layer's cache, [T * num_kv_heads]."""
    rows_per_head = binder.kv_cache.zero_slot(op.kv.group_id) + 1
    first_rows = np.arange(op.num_kv_heads, dtype=np.int64) * rows_per_head

    def make(batch: StepBatch) -> torch.Tensor:
        slots = batch.groups[op.kv.group_id].slot_mapping
        return binder.index((slots[:, None] + first_rows).reshape(-1))

    return make


def _head_norms(op: ops.RopeStoreKV, binder: Binder) -> Callable[[torch.Tensor], torch.Tensor]:
    """RMS norms of q's and k's heads, [T, num_heads + num_kv_heads, head_size] fp32."""
    weights = [
        (heads, binder.tensor(name, torch.float32))
        for heads, name in (
            (slice(0, op.num_heads), op.q_norm),
            (slice(op.num_heads, None), op.k_norm),
        )
        if name is not None
    ]

    def norms(q_and_k: torch.Tensor) -> torch.Tensor:
        for heads, weight in weights:
            q_and_k[:, heads] = normalize(q_and_k[:, heads], weight, op.norm_eps)
        return q_and_k

    return norms
