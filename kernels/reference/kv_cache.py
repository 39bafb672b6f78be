"""The paged KV cache of the reference backend.

Per group one tensor [num_layers, num_kv_heads, num_slots + 1, 2 * head_size]: K and V of one token
and head lie side by side, so that attention fetches both in one gather of rows. The slot after
the last block always holds zeros: a gather that must read nothing (past a request's length, or
before its window) reads that slot, and so never meets what an unused block was left with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hasten.kernels.reference.binding import TORCH_DTYPES

if TYPE_CHECKING:
    from hasten.kernels.backend import KVPlan
    from hasten.kernels.program import KVGroupSpec, KVLayer
    from hasten.kernels.step import StepBatch


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
        return sum(data.nbytes for data in self._groups)

    def zero_slot(self, group_id: int) -> int:
        """The slot that always holds zeros; also how many slots blocks have."""
        return self._groups[group_id].shape[2] - 1

    def rows(self, layer: KVLayer) -> torch.Tensor:
        """One layer, [num_kv_heads * (num_slots + 1), 2 * head_size]: row = head * ... + slot."""
        return self._groups[layer.group_id][layer.layer_idx].flatten(0, 1)

    def copy_blocks(self, batch: StepBatch) -> None:
        """Carry out the block copies of every group, in order."""
        size = self.plan.block_size
        for data, tables in zip(self._groups, batch.groups, strict=True):
            for source, destination in tables.block_copies.tolist():
                data[:, :, destination * size : (destination + 1) * size] = data[
                    :, :, source * size : (source + 1) * size
                ]


def _allocate(spec: KVGroupSpec, num_slots: int, device: torch.device) -> torch.Tensor:
    shape = (spec.num_layers, spec.num_kv_heads, num_slots + 1, 2 * spec.head_size)
    return torch.zeros(shape, dtype=TORCH_DTYPES[spec.dtype], device=device)
