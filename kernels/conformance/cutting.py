"""The ways to cut the same rows into steps, and the step batches that they make.

A *workload* is some requests, each of so many tokens; row i of all requests laid end to end has
token id i. A *schedule* is a list of steps; a step is a list of parts (request, start, stop).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import numpy.typing as npt
from hasten.kernels.program import KVGroupSpec
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import GroupTables, StepBatch

BLOCK_SIZE = 16
RAGGED = (1, 2, 7, 15, 16, 17, 31, 41)
"""Cut lengths that meet one row, primes, and block and tile borders on both sides."""

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [start, stop) of one request."""

    request: int
    start: int
    stop: int


Schedule = list[list[Part]]


def schedules(lengths: Sequence[int]) -> dict[str, Schedule]:
    """Every way in which a workload is cut; all must give the same bits."""
    whole = [Part(request, 0, length) for request, length in enumerate(lengths)]
    ways = {
        "together": [whole],
        "alone": [[part] for part in whole],
        "ragged": list(_chunks(lengths, RAGGED)),
        "chunks of 7": list(_chunks(lengths, (7,))),
        "prompt, then decode": list(_decoding(lengths, num_decoded=9)),
    }
    return {name: way for name, way in ways.items() if name == "together" or way != [whole]}


def _chunks(lengths: Sequence[int], sizes: Sequence[int]) -> Iterator[list[Part]]:
    """All requests advance side by side, each by the sizes in turn, every one at another size."""
    turns = [
        cycle((*sizes[i % len(sizes) :], *sizes[: i % len(sizes)])) for i in range(len(lengths))
    ]
    done = [0] * len(lengths)
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        step = []
        for request, length in enumerate(lengths):
            stop = min(done[request] + next(turns[request]), length)
            if stop > done[request]:
                step.append(Part(request, done[request], stop))
            done[request] = stop
        yield step


def _decoding(lengths: Sequence[int], num_decoded: int) -> Iterator[list[Part]]:
    """All but the last few tokens of each request, one request per step; then one by one."""
    heads = [max(length - num_decoded, 0) for length in lengths]
    yield from ([Part(i, 0, head)] for i, head in enumerate(heads) if head)
    for offset in range(num_decoded):
        step = [
            Part(i, head + offset, head + offset + 1)
            for i, (head, length) in enumerate(zip(heads, lengths, strict=True))
            if head + offset < length
        ]
        if step:
            yield step


class BatchMaker:
    """Lays steps out over shuffled blocks, with table rows in another order than requests."""

    def __init__(self, lengths: Sequence[int], groups: Sequence[KVGroupSpec]) -> None:
        self._first_rows = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._groups = tuple(groups)
        self._table_rows = np.arange(len(lengths))[::-1].astype(np.int32)
        max_blocks = -(-max(lengths) // BLOCK_SIZE) + 1
        self._blocks = np.random.default_rng(7).permutation(len(lengths) * max_blocks) + 1
        self._tables = self._blocks.reshape(len(lengths), max_blocks).astype(np.int32)

    @property
    def num_blocks(self) -> int:
        return self._tables.size + 1

    @property
    def max_len(self) -> int:
        """The positions that a request's blocks have."""
        return self._tables.shape[1] * BLOCK_SIZE

    def rows(self, parts: Sequence[Part]) -> npt.NDArray[np.int64]:
        """Which rows of the workload a step computes, in the step's order."""
        return np.concatenate(
            [self._first_rows[p.request] + np.arange(p.start, p.stop) for p in parts]
        )

    def batch(self, parts: Sequence[Part]) -> StepBatch:
        return self._lay_out(parts, self.rows(parts).astype(np.int32))

    def poison(self, request: int, token_id: int) -> StepBatch:
        """A step that fills every block of a request with one token."""
        part = Part(request, 0, self.max_len)
        return self._lay_out([part], np.full(self.max_len, token_id, dtype=np.int32))

    def poison_null_block(self, token_id: int) -> StepBatch:
        """A step that writes one token all over the null block, as padding may."""
        tables = np.zeros_like(self._tables)
        token_ids = np.full(BLOCK_SIZE, token_id, dtype=np.int32)
        return self._lay_out([Part(0, 0, BLOCK_SIZE)], token_ids, tables)

    def _lay_out(
        self, parts: Sequence[Part], token_ids: I32, tables: I32 | None = None
    ) -> StepBatch:
        lengths = [part.stop - part.start for part in parts]
        positions = np.concatenate([np.arange(p.start, p.stop) for p in parts]).astype(np.int32)
        table_rows = self._table_rows[[part.request for part in parts]]
        row_of_token = np.repeat(table_rows, lengths)
        return StepBatch(
            token_ids=token_ids,
            positions=positions,
            query_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            seq_lens=np.array([part.stop for part in parts], dtype=np.int32),
            table_rows=table_rows,
            groups=tuple(
                _group_tables(
                    self._left_behind(parts, spec.window) if tables is None else tables,
                    row_of_token,
                    positions,
                )
                for spec in self._groups
            ),
            logit_rows=np.zeros(0, dtype=np.int32),
            sampling=greedy_rows(0),
        )

    def _left_behind(self, parts: Sequence[Part], window: int | None) -> I32:
        """The tables with the null block wherever a window has left a block behind."""
        tables = self._tables.copy()
        if window is not None:
            for part in parts:
                num_gone = max(0, part.start - window + 1) // BLOCK_SIZE
                tables[self._table_rows[part.request], :num_gone] = 0
        return tables


def _group_tables(tables: I32, row_of_token: I32, positions: I32) -> GroupTables:
    blocks = tables[row_of_token, positions // BLOCK_SIZE]
    slots = (blocks * BLOCK_SIZE + positions % BLOCK_SIZE).astype(np.int32)
    return GroupTables(slots, tables, np.zeros((0, 2), dtype=np.int32))
