"""The paged KV cache on the device.

Per group [num_layers, num_blocks, num_kv_heads, 2, block_size, head_size], K before V: what one
head has in one block is contiguous, and a block of a layer is copied as one piece. An fp8 cache
holds e4m3 codes and, in a tensor of its own, a bf16 scale for each K and V of each token and head:
[num_layers, num_blocks, num_kv_heads, 2, block_size].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from hasten.kernels.dtypes import DType

if TYPE_CHECKING:
    from hasten.kernels.backend import KVPlan
    from hasten.kernels.program import KVGroupSpec, KVLayer
    from hasten.kernels.step import StepBatch

KV_DTYPES = {DType.BF16: torch.bfloat16, DType.FP8_E4M3: torch.float8_e4m3fn}
SCALE_BYTES = 2
"""Of each scale of an fp8 cache (bf16)."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's tensors; `scales` is `data` where there are none."""

    data: torch.Tensor
    scales: torch.Tensor
    is_fp8: bool


class TritonKVCache:
    """K and V of all groups, layers and blocks; zero at first."""

    def __init__(self, plan: KVPlan, device: torch.device) -> None:
        self.plan = plan
        self._groups = [
            _allocate(spec, num_blocks, plan.block_size, device)
            for spec, num_blocks in zip(plan.groups, plan.num_blocks, strict=True)
        ]

    @property
    def num_bytes(self) -> int:
        return sum(data.nbytes for tensors in self._groups for data in tensors)

    def layer(self, layer: KVLayer) -> LayerCache:
        tensors = [data[layer.layer_idx] for data in self._groups[layer.group_id]]
        return LayerCache(tensors[0], tensors[-1], is_fp8=len(tensors) == 2)

    def copy_blocks(self, batch: StepBatch) -> None:
        """Carry out the block copies of every group, in order."""
        for tensors, tables in zip(self._groups, batch.groups, strict=True):
            for source, destination in tables.block_copies.tolist():
                for data in tensors:
                    data[:, destination].copy_(data[:, source])


def kv_token_bytes(spec: KVGroupSpec) -> int:
    """Bytes that one token takes in one group, all its layers and heads together."""
    scales = SCALE_BYTES if spec.dtype is DType.FP8_E4M3 else 0
    per_head = 2 * (spec.head_size * spec.dtype.itemsize + scales)
    return spec.num_layers * spec.num_kv_heads * per_head


def _allocate(
    spec: KVGroupSpec, num_blocks: int, block_size: int, device: torch.device
) -> tuple[torch.Tensor, ...]:
    """The group's tensors: the numbers, and for fp8 their scales."""
    shape = (spec.num_layers, num_blocks, spec.num_kv_heads, 2, block_size)
    data = torch.zeros((*shape, spec.head_size), dtype=KV_DTYPES[spec.dtype], device=device)
    if spec.dtype is not DType.FP8_E4M3:
        return (data,)
    return data, torch.zeros(shape, dtype=torch.bfloat16, device=device)
