"""`ops.PagedAttention` in torch: one path for decode, chunk, verify and whole prompt.

The queries of a step are cut into *units*: up to a few consecutive tokens of one request. A unit
meets the cache in *tiles* of `TILE_LEN` positions, counted from position 0; a (unit, tile) pair is
an *item*. All items are multiplied in one batched product, and the results of a unit's items are
added in the order of their tiles. Units are sorted so that the i-th items of all units that have
so many lie next to each other and are added in one operation:

    unit 0 |tile 0|tile 1|tile 2|        items:  tile 0 of units 0 1 2
    unit 1 |tile 0|tile 1|                       tile 1 of units 0 1
    unit 2 |tile 0|                              tile 2 of unit  0

A row's result is a function of its own query and of the positions it sees: a tile has one shape
however much of it is visible, hidden scores weigh exactly zero, and products take the one path
through MKL that was measured to treat all rows alike (torch 2.13, 1 to 8 threads): several
matrices at once, of a multiple of `ROW_TILE` rows. Fewer rows, and matrices alone, have other bits.

Not here: the geometry of a step (`attention_plan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hasten.kernels.reference.attention_plan import AttentionPlanner, Geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.attention_plan import UnitBatch
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight

FLOOR = -1e30
"""Stands for the largest score of a row that sees nothing, so that exp(-inf - FLOOR) is 0."""


def supports(_op: ops.PagedAttention, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.PagedAttention, binder: Binder) -> Kernel:
    qkv, out = binder.activation(op.qkv), binder.activation(op.out)
    geometry = Geometry.of(op, binder.kv_cache.plan.block_size)
    planner = AttentionPlanner(geometry, binder.kv_cache.zero_slot(op.kv.group_id), binder.device)
    plan = binder.per_step(("attention", op.kv.group_id, geometry), planner.plan)
    attend = _Attend(op, binder)
    query_width = op.num_heads * op.head_size

    def paged_attention() -> None:
        queries = qkv.rows[:, :query_width]
        for units in plan.value:
            out.rows.index_copy_(0, units.tokens, attend(queries, units).to(out.rows.dtype))

    return paged_attention


class _Attend:
    """Attention of one layer for a batch of units."""

    def __init__(self, op: ops.PagedAttention, binder: Binder) -> None:
        self._cache = binder.kv_cache.layer(op.kv)
        self._scale = op.scale
        self._num_kv_heads = op.num_kv_heads
        self._head_size = op.head_size
        self._cap = _soft_cap(op.softcap)
        self._sinks = None if op.sinks is None else binder.tensor(op.sinks, torch.float32)

    def __call__(self, queries: torch.Tensor, units: UnitBatch) -> torch.Tensor:
        """[num_valid_tokens, num_heads * head_size] fp32, in the order of `units.tokens`."""
        keys, values = self._fetch(units)
        packed = self._pack(queries, units)
        scores = self._scores(packed, keys, units)  # [items, kv_heads, rows, TILE_LEN]
        peak = units.reduce(scores.amax(-1), torch.maximum)  # [units, kv_heads, rows]
        peak.clamp_(min=FLOOR)
        if self._sinks is not None:
            sinks = self._sink_rows(units)
            peak = torch.maximum(peak, sinks)
        weights = scores.sub_(units.spread(peak).unsqueeze(-1)).exp_()
        total = units.reduce(weights.sum(-1), torch.add)
        if self._sinks is not None:
            total += (sinks - peak).exp_()
        mixed = units.reduce(
            _products(weights.flatten(0, 1), values).view(*weights.shape[:-1], -1), torch.add
        )
        return self._unpack(mixed.div_(total.unsqueeze(-1)), units)

    def _fetch(self, units: UnitBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of every item, each [items * kv_heads, TILE_LEN, head_size] fp32."""
        fetched = self._cache.fetch(units.cache_rows)
        tiles = fetched.view(len(units.hidden) * self._num_kv_heads, -1, 2 * self._head_size)
        return tiles[..., : self._head_size], tiles[..., self._head_size :]

    def _pack(self, queries: torch.Tensor, units: UnitBatch) -> torch.Tensor:
        """Scaled queries by unit and KV head, [units, kv_heads, rows, head_size] fp32.

        A row is (token of the unit, head of the group), zeros after the last.
        """
        shape = (units.num_units, units.tokens_per_unit, self._num_kv_heads, -1, self._head_size)
        chosen = queries.index_select(0, units.unit_tokens).view(shape).transpose(1, 2)
        packed = torch.zeros(
            (units.num_units, self._num_kv_heads, units.num_rows, self._head_size),
            device=queries.device,
        )
        used = packed[:, :, : units.tokens_per_unit * chosen.shape[3]]
        used.view(chosen.shape).copy_(chosen)
        return packed.mul_(self._scale)

    def _scores(self, packed: torch.Tensor, keys: torch.Tensor, units: UnitBatch) -> torch.Tensor:
        scores = _products(units.spread(packed).flatten(0, 1), keys.transpose(1, 2))
        scores = self._cap(scores).view(len(units.hidden), self._num_kv_heads, units.num_rows, -1)
        return scores.masked_fill_(units.hidden, -torch.inf)

    def _sink_rows(self, units: UnitBatch) -> torch.Tensor:
        """The sink logit of every row, [kv_heads, rows]."""
        assert self._sinks is not None
        by_group = self._sinks.view(self._num_kv_heads, 1, -1)
        rows = by_group.expand(-1, units.tokens_per_unit, -1).flatten(1)
        return torch.nn.functional.pad(rows, (0, units.num_rows - rows.shape[1]))

    def _unpack(self, mixed: torch.Tensor, units: UnitBatch) -> torch.Tensor:
        """The opposite of `_pack`, without the tokens that only fill a unit up."""
        used = mixed[:, :, : units.tokens_per_unit * units.group_size]
        shape = (*used.shape[:2], units.tokens_per_unit, units.group_size, self._head_size)
        by_token = used.view(shape).transpose(1, 2)
        return by_token.flatten(0, 1).flatten(1).index_select(0, units.valid)


def _products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Batched products, never of one pair alone: MKL would cut that one among its threads."""
    if len(left) > 1:
        return torch.bmm(left, right)
    return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]


def _soft_cap(softcap: float | None) -> Callable[[torch.Tensor], torch.Tensor]:
    if softcap is None:
        return lambda scores: scores
    return lambda scores: scores.div_(softcap).tanh_().mul_(softcap)
