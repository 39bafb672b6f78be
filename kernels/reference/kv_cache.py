"""The paged KV cache of the reference backend.

Per group [num_layers, num_kv_heads, num_slots + 1, 2 * head_size]: K and V of one token and head
lie side by side, so that attention fetches both in one gather of rows. The slot after the last
block always holds zeros: a gather that must read nothing (past a request's length, or before its
window) reads that slot, and so never meets what an unused block was left with.

An fp8 cache holds e4m3 codes and, beside them, a bf16 scale for K and one for V of each token and
head (`ops.RopeStoreKV` says which).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from hasten.kernels.dtypes import DType
from hasten.kernels.reference.binding import TORCH_DTYPES
from hasten.kernels.reference.fp8_activations import dynamic_scale, to_e4m3

if TYPE_CHECKING:
    from hasten.kernels.backend import KVPlan
    from hasten.kernels.program import KVGroupSpec, KVLayer
    from hasten.kernels.step import StepBatch

KV_SCALE_BYTES = 2
"""Of each scale of an fp8 cache (bf16)."""


class LayerCache(Protocol):
    """One layer's rows: row = head * (num_slots + 1) + slot."""

    def store(self, rows: torch.Tensor, k_and_v: torch.Tensor) -> None:
        """Write [n, 2 * head_size] to `rows` [n]."""
        ...

    def fetch(self, rows: torch.Tensor) -> torch.Tensor:
        """Read `rows` [n] as fp32 [n, 2 * head_size]."""
        ...


class ReferenceKVCache:
    """K and V of all groups, layers and blocks."""

    def __init__(self, plan: KVPlan, device: torch.device) -> None:
        self.plan = plan
        self._groups = [
            _allocate(spec, num_blocks * plan.block_size, device)
            for spec, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
        ]

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for tensors in self._groups for data in tensors)

    def zero_slot(self, group_id: int) -> int:
        """The slot that always holds zeros; also how many slots blocks have."""
        return self._groups[group_id][0].shape[2] - 1

    def layer(self, layer: KVLayer, scales: tuple[float, float] | None = None) -> LayerCache:
        """One layer; `scales` of K and V are static ones for what is stored in an fp8 cache."""
        tensors = [data[layer.layer_idx].flatten(0, 1) for data in self._groups[layer.group_id]]
        if len(tensors) == 1:
            return _PlainLayer(tensors[0])
        codes, code_scales = tensors
        return _Fp8Layer(codes, code_scales, scales)

    def copy_blocks(self, batch: StepBatch) -> None:
        """Carry out the block copies of every group, in order."""
        size = self.plan.block_size
        for tensors, tables in zip(self._groups, batch.groups, strict=True):
            for source, destination in tables.block_copies.tolist():
                for data in tensors:
                    data[:, :, destination * size : (destination + 1) * size] = data[
                        :, :, source * size : (source + 1) * size
                    ]


class _PlainLayer:
    """Rows of bf16 or fp32."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data

    def store(self, rows: torch.Tensor, k_and_v: torch.Tensor) -> None:
        self._data.index_copy_(0, rows, k_and_v.to(self._data.dtype))

    def fetch(self, rows: torch.Tensor) -> torch.Tensor:
        return self._data.index_select(0, rows).float()


class _Fp8Layer:
    """Rows of e4m3 codes, kept as bytes because torch indexes no fp8, and their scales."""

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, static: tuple[float, float] | None
    ) -> None:
        self._codes = codes  # [rows, 2 * head_size] uint8
        self._scales = scales  # [rows, 2] bf16
        self._static = None if static is None else torch.tensor(static, device=codes.device)

    def store(self, rows: torch.Tensor, k_and_v: torch.Tensor) -> None:
        halves = k_and_v.float().view(len(rows), 2, -1)
        scale = self._choose_scales(halves)
        codes = to_e4m3(halves / scale.float().unsqueeze(-1)).view(torch.uint8)
        self._codes.index_copy_(0, rows, codes.flatten(1))
        self._scales.index_copy_(0, rows, scale)

    def fetch(self, rows: torch.Tensor) -> torch.Tensor:
        codes = self._codes.index_select(0, rows).view(torch.float8_e4m3fn).float()
        scale = self._scales.index_select(0, rows).float().unsqueeze(-1)
        return codes.view(len(rows), 2, -1).mul_(scale).flatten(1)

    def _choose_scales(self, halves: torch.Tensor) -> torch.Tensor:
        """[n, 2] bf16, none of them 0."""
        if self._static is not None:
            return self._static.to(torch.bfloat16).expand(len(halves), 2)
        scale = dynamic_scale(halves).squeeze(-1).to(torch.bfloat16)
        return torch.where(scale == 0, torch.ones_like(scale), scale)


def kv_token_bytes(spec: KVGroupSpec) -> int:
    """Bytes that one token takes in one group, all its layers and heads together."""
    values = 2 * spec.head_size * spec.dtype.itemsize
    scales = 2 * KV_SCALE_BYTES if spec.dtype is DType.FP8_E4M3 else 0
    return spec.num_layers * spec.num_kv_heads * (values + scales)


def _allocate(spec: KVGroupSpec, num_slots: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """The group's tensors: the numbers, and for fp8 their scales."""
    shape = (spec.num_layers, spec.num_kv_heads, num_slots + 1)
    width = 2 * spec.head_size
    if spec.dtype is DType.FP8_E4M3:
        return (
            torch.zeros((*shape, width), dtype=torch.uint8, device=device),
            torch.zeros((*shape, 2), dtype=torch.bfloat16, device=device),
        )
    return (torch.zeros((*shape, width), dtype=TORCH_DTYPES[spec.dtype], device=device),)
