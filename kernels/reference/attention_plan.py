"""The geometry of attention in one step: which queries meet which cache rows, in what order.

Made once per step from the batch, in numpy, and shared by all layers of equal geometry. The words
(unit, tile, item) are those of `paged_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hasten.kernels import ops
    from hasten.kernels.step import StepBatch

TILE_LEN = 64
"""Positions per tile of the cache."""
ROW_TILE = 4
"""Rows of a product (query tokens x heads of a group) come in multiples of this."""
FEW_ROWS, MANY_ROWS = 16, 128
"""Most rows per unit, for requests with so few queries that they fit in one, and for others."""
MAX_ITEM_ROWS = 1 << 14
"""Rows x KV heads of the items multiplied at once: bounds the memory of a long prefill."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What two layers must share for one plan to serve both."""

    group_id: int
    num_kv_heads: int
    group_size: int
    window: int | None
    block_size: int

    @classmethod
    def of(cls, op: ops.PagedAttention, block_size: int) -> Geometry:
        group_size = op.num_heads // op.num_kv_heads
        return cls(op.kv.group_id, op.num_kv_heads, group_size, op.window, block_size)


@dataclass(frozen=True, slots=True)
class UnitBatch:
    """Units that are computed together, and their items. U units, N items."""

    num_units: int
    tokens_per_unit: int
    group_size: int
    num_rows: int  # tokens_per_unit * group_size, rounded up to ROW_TILE
    unit_tokens: torch.Tensor  # [U * tokens_per_unit] rows of T; the first again where none is left
    valid: torch.Tensor  # [V] which of `unit_tokens` are real
    tokens: torch.Tensor  # [V] the rows of T that those are
    item_units: torch.Tensor | None  # [N] the unit of each item; None: item i is of unit i
    runs: tuple[int, ...]  # how many units have an i-th item, for each i: N in total
    cache_rows: torch.Tensor  # [N * num_kv_heads * TILE_LEN] rows of a layer's cache
    hidden: torch.Tensor  # [N, 1, num_rows, TILE_LEN] bool: positions a row may not see

    def spread(self, by_unit: torch.Tensor) -> torch.Tensor:
        """[U, ...] to [N, ...]: each item gets what its unit has."""
        return by_unit if self.item_units is None else by_unit.index_select(0, self.item_units)

    def reduce(self, by_item: torch.Tensor, combine: Callable[..., torch.Tensor]) -> torch.Tensor:
        """[N, ...] to [U, ...], each unit's items combined in the order of their tiles."""
        result = by_item[: self.num_units]
        start = self.num_units
        for num_units in self.runs[1:]:
            part = result[:num_units]
            combine(part, by_item[start : start + num_units], out=part)
            start += num_units
        return result


@dataclass(frozen=True, slots=True)
class _Units:
    """Units before they are laid out, longest first. Arrays are [U]."""

    request: I64
    first_token: I64  # row of T
    num_tokens: I64
    first_position: I64
    first_tile: I64
    num_tiles: I64

    def __getitem__(self, chosen: slice | I64) -> _Units:
        return _Units(
            self.request[chosen],
            self.first_token[chosen],
            self.num_tokens[chosen],
            self.first_position[chosen],
            self.first_tile[chosen],
            self.num_tiles[chosen],
        )


class AttentionPlanner:
    """Makes the plan of each step for one geometry."""

    def __init__(self, geometry: Geometry, zero_slot: int, device: torch.device) -> None:
        self._geometry = geometry
        self._zero_slot = zero_slot
        self._device = device
        self._first_rows = np.arange(geometry.num_kv_heads, dtype=np.int64) * (zero_slot + 1)

    def plan(self, batch: StepBatch) -> tuple[UnitBatch, ...]:
        """The unit batches that cover all tokens of the step, each token once."""
        query_lens = np.diff(batch.query_starts).astype(np.int64)
        few = FEW_ROWS // self._geometry.group_size
        many = max(1, MANY_ROWS // self._geometry.group_size)
        batches: list[UnitBatch] = []
        for chosen, most in ((query_lens <= few, few), (query_lens > few, many)):
            requests = np.flatnonzero(chosen & (query_lens > 0))
            if len(requests):
                tokens_per_unit = min(most, int(query_lens[requests].max()))
                batches.extend(self._cover(batch, requests, tokens_per_unit))
        return tuple(batches)

    def _cover(self, batch: StepBatch, requests: I64, tokens_per_unit: int) -> Iterator[UnitBatch]:
        units = self._cut(batch, requests, tokens_per_unit)
        num_rows = -(-tokens_per_unit * self._geometry.group_size // ROW_TILE) * ROW_TILE
        most_items = max(1, MAX_ITEM_ROWS // (num_rows * self._geometry.num_kv_heads))
        num_items = np.cumsum(units.num_tiles)
        start = 0
        while start < len(num_items):
            before = num_items[start - 1] if start else 0
            stop = int(np.searchsorted(num_items, before + most_items, side="right"))
            stop = max(stop, start + 1)
            yield self._lay_out(batch, units[start:stop], tokens_per_unit, num_rows)
            start = stop

    def _cut(self, batch: StepBatch, requests: I64, tokens_per_unit: int) -> _Units:
        starts = batch.query_starts.astype(np.int64)
        query_lens = np.diff(starts)[requests]
        num_units = -(-query_lens // tokens_per_unit)
        request = np.repeat(requests, num_units)
        offset = _counting(num_units) * tokens_per_unit
        num_tokens = np.minimum(np.diff(starts)[request] - offset, tokens_per_unit)
        num_before = batch.seq_lens.astype(np.int64) - np.diff(starts)
        first_position = num_before[request] + offset
        first_tile = self._lowest_visible(first_position) // TILE_LEN
        num_tiles = (first_position + num_tokens - 1) // TILE_LEN + 1 - first_tile
        units = _Units(
            request, starts[request] + offset, num_tokens, first_position, first_tile, num_tiles
        )
        return units[np.argsort(-num_tiles, kind="stable")]

    def _lowest_visible(self, positions: I64) -> I64:
        if self._geometry.window is None:
            return np.zeros_like(positions)
        return np.maximum(positions - self._geometry.window + 1, 0)

    def _lay_out(
        self, batch: StepBatch, units: _Units, tokens_per_unit: int, num_rows: int
    ) -> UnitBatch:
        step = np.arange(tokens_per_unit)
        real = step < units.num_tokens[:, None]  # [U, tokens_per_unit]
        unit_tokens = units.first_token[:, None] + np.where(real, step, 0)
        runs = [int((units.num_tiles > i).sum()) for i in range(int(units.num_tiles[0]))]
        item_units = np.concatenate([np.arange(run) for run in runs])
        nth = np.repeat(np.arange(len(runs)), runs)
        tile_starts = (units.first_tile[item_units] + nth) * TILE_LEN
        positions = tile_starts[:, None] + np.arange(TILE_LEN)  # [N, TILE_LEN]
        items = units[item_units]
        return UnitBatch(
            num_units=len(units.request),
            tokens_per_unit=tokens_per_unit,
            group_size=self._geometry.group_size,
            num_rows=num_rows,
            unit_tokens=self._tensor(unit_tokens.reshape(-1)),
            valid=self._tensor(np.flatnonzero(real)),
            tokens=self._tensor(unit_tokens[real]),
            item_units=None if len(runs) == 1 else self._tensor(item_units),
            runs=tuple(runs),
            cache_rows=self._tensor(self._cache_rows(batch, items, positions)),
            hidden=self._tensor(self._hidden(items, positions, tokens_per_unit, num_rows)),
        )

    def _cache_rows(self, batch: StepBatch, items: _Units, positions: I64) -> I64:
        """Rows of a layer's cache by item, KV head and position: flat [N * kv_heads * TILE_LEN]."""
        size = self._geometry.block_size
        tables = batch.groups[self._geometry.group_id].block_tables
        columns = np.minimum(positions // size, tables.shape[1] - 1)
        blocks = tables[batch.table_rows[items.request][:, None], columns].astype(np.int64)
        stop = (items.first_position + items.num_tokens)[:, None]
        low = self._lowest_visible(items.first_position)[:, None]
        readable = (positions >= low) & (positions < stop)
        slots = np.where(readable, blocks * size + positions % size, self._zero_slot)
        return (slots[:, None, :] + self._first_rows[:, None]).reshape(-1)

    def _hidden(
        self, items: _Units, positions: I64, tokens_per_unit: int, num_rows: int
    ) -> npt.NDArray[np.bool_]:
        row_tokens = np.arange(num_rows) // self._geometry.group_size
        row_tokens = np.minimum(row_tokens, tokens_per_unit - 1)
        own = (items.first_position[:, None] + row_tokens)[:, :, None]  # [N, num_rows, 1]
        hidden = positions[:, None, :] > own
        if self._geometry.window is not None:
            hidden |= positions[:, None, :] <= own - self._geometry.window
        return hidden[:, None]

    def _tensor(self, array: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _counting(lengths: I64) -> I64:
    """0 .. n-1 for each n of `lengths`, end to end."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
