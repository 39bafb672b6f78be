"""The work list of attention in one step: which query rows meet which part of the cache.

A *unit* is up to ROWS / group consecutive tokens of one request, with all heads that share a KV
head: the rows of one tile. The cache is cut into *splits* of SPLIT_LEN positions from position 0.
An *item* is a unit with all its splits, or with one of them; then a *merge* adds the unit's splits
up, in order. Which it is depends on how much else there is to do, and changes no bit.

Made once per step in numpy for all layers of one geometry. Exercised by
`pytest tests/cpu/triton/test_attention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hasten.kernels import ops
    from hasten.kernels.step import StepBatch

ROWS = 64
"""Rows of a tile (query tokens x heads of a group): the height of the matrix instruction."""
SPLIT_LEN = 512
"""Positions that are summed from zero before they meet what was summed before."""
MAX_PARTIAL_ROWS = 4096
"""Query rows of splits that wait for their merge: bounds the scratch memory."""

ITEM_FIELDS = 8
"""token, num_tokens, request, first position, first and stop split, partial row (-1: whole), 0"""
MERGE_FIELDS = 4
"""token, num_tokens, first partial row, number of splits"""

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What two layers must share for one work list to serve both."""

    group_id: int
    num_kv_heads: int
    group_size: int
    window: int | None

    @classmethod
    def of(cls, op: ops.PagedAttention) -> Geometry:
        group_size = op.num_heads // op.num_kv_heads
        return cls(op.kv.group_id, op.num_kv_heads, group_size, op.window)

    @property
    def tokens_per_unit(self) -> int:
        return ROWS // self.group_size


@dataclass(frozen=True, slots=True)
class WorkList:
    """`items` [n, ITEM_FIELDS], longest first, and `merges` [m, MERGE_FIELDS]."""

    items: I32
    merges: I32


def plan_attention(batch: StepBatch, geometry: Geometry, num_programs: int) -> WorkList:
    """The work of one step for `num_programs` programs that run side by side."""
    units = _cut(batch, geometry)
    num_splits = units[:, 5] - units[:, 4]
    order = np.argsort(-num_splits, kind="stable")
    units, num_splits = units[order], num_splits[order]
    apart = np.zeros(len(units), dtype=np.bool_)
    if len(units) * geometry.num_kv_heads < num_programs:
        rows = num_splits * units[:, 1] * geometry.group_size
        apart = (num_splits > 1) & (np.cumsum(rows) <= MAX_PARTIAL_ROWS)
    return _lay_out(units, num_splits, apart, geometry)


def _cut(batch: StepBatch, geometry: Geometry) -> I64:
    """All units as items that are whole, [num_units, ITEM_FIELDS]."""
    starts = batch.query_starts.astype(np.int64)
    query_lens = np.diff(starts)
    num_units = -(-query_lens // geometry.tokens_per_unit)
    request = np.repeat(np.arange(len(query_lens)), num_units)
    offset = _counting(num_units) * geometry.tokens_per_unit
    num_tokens = np.minimum(query_lens[request] - offset, geometry.tokens_per_unit)
    first = batch.seq_lens.astype(np.int64)[request] - query_lens[request] + offset
    lowest = np.zeros_like(first)
    if geometry.window is not None:
        lowest = np.maximum(first - geometry.window + 1, 0)
    units = np.zeros((len(request), ITEM_FIELDS), dtype=np.int64)
    units[:, 0] = starts[request] + offset
    units[:, 1] = num_tokens
    units[:, 2] = request
    units[:, 3] = first
    units[:, 4] = lowest // SPLIT_LEN
    units[:, 5] = (first + num_tokens - 1) // SPLIT_LEN + 1
    units[:, 6] = -1
    return units


def _lay_out(
    units: I64, num_splits: I64, apart: npt.NDArray[np.bool_], geometry: Geometry
) -> WorkList:
    divided, counts = units[apart], num_splits[apart]
    rows = divided[:, 1] * geometry.group_size
    first_rows = np.cumsum(counts * rows) - counts * rows
    items = np.repeat(divided, counts, axis=0)
    nth = _counting(counts)
    items[:, 4] += nth
    items[:, 5] = items[:, 4] + 1
    items[:, 6] = np.repeat(first_rows, counts) + nth * np.repeat(rows, counts)
    merges = np.stack((divided[:, 0], divided[:, 1], first_rows, counts), axis=1)
    return WorkList(
        np.concatenate((units[~apart], items)).astype(np.int32), merges.astype(np.int32)
    )


def _counting(lengths: I64) -> I64:
    """0 .. n-1 for each n of `lengths`, end to end."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
