"""Every logit of a sequence, and what each layer added, from the program that also serves.

A second executable of the same program, weights and kernels, in which these can be read, and a KV
cache that holds one sequence. Exercised by `pytest tests/evals`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.latency import Chunk
from hasten.core.runner import dummy_batch
from hasten.evals.distribution import FullDistribution
from hasten.evals.target import Scored
from hasten.kernels.backend import KVPlan
from hasten.kernels.ops import GatherRows, Linear, Sample
from hasten.kernels.program import Buffer, Capacity, Rows
from hasten.kernels.step import GroupTables, StepBatch

if TYPE_CHECKING:
    from hasten.core.binding import ModelBinding
    from hasten.evals.distribution import F32
    from hasten.kernels.ops import Op
    from hasten.kernels.program import Program

TAP = "logits"
LAYER_TAP = "layer."
ENDS_OF_LAYERS = (".o", ".down")
"""Linear layers whose outputs are added to the residual stream: attention's and the MLP's."""
CHUNK_LEN = 256
"""Tokens per step: 50 MB of logits at a vocabulary of 49152."""


class LogitsReader:
    """Reads sequences of up to `max_len` tokens, one at a time."""

    def __init__(self, binding: ModelBinding, max_len: int, block_size: int) -> None:
        program = with_taps(binding.program)
        self._layers = [name for name in program.taps if name.startswith(LAYER_TAP)]
        num_blocks = -(-max_len // block_size) + 1  # one more: the null block
        plan = KVPlan(program.kv_groups, (num_blocks,) * len(program.kv_groups), block_size)
        capacity = Capacity(CHUNK_LEN, 1, 1, max_len)
        self._kv_cache = binding.backend.allocate_kv(plan)
        self._executable = binding.backend.compile(
            program, binding.model.weights, self._kv_cache, capacity
        )
        self._plan = plan
        self._max_len = max_len

    def read(self, scored: Scored) -> FullDistribution:
        """What the model expects at each position from `scored.start` on."""
        ids = scored.token_ids
        parts = [
            self._chunk(ids, begin, min(begin + CHUNK_LEN, len(ids) - 1), scored.start - 1)
            for begin in range(0, len(ids) - 1, CHUNK_LEN)
        ]
        return FullDistribution.from_logits(np.concatenate(parts), ids[scored.start :])

    def read_layers(self, token_ids: tuple[int, ...]) -> dict[str, F32]:
        """What each attention and each MLP added at the last positions, by the weight's name."""
        self.read(Scored(token_ids, len(token_ids) - 1))
        taps = {name: self._executable.tap(name).copy() for name in self._layers}
        return {name.removeprefix(LAYER_TAP): rows for name, rows in taps.items()}

    def _chunk(self, ids: tuple[int, ...], begin: int, end: int, first_wanted: int) -> F32:
        """Compute tokens [begin, end); returns the logits of those from `first_wanted` on."""
        self._executable.run(self._batch(ids, Chunk(begin, end - begin, 1)))
        # The tap is only valid until the next step.
        return self._executable.tap(TAP)[max(first_wanted - begin, 0) :].copy()

    def _batch(self, ids: tuple[int, ...], chunk: Chunk) -> StepBatch:
        """One request that owns block i + 1 at place i of its table."""
        batch = dummy_batch([chunk], self._plan, self._max_len)
        begin, end = chunk.start, chunk.start + chunk.num_tokens
        batch.token_ids[:] = ids[begin:end]
        block_size = self._plan.block_size
        max_blocks = -(-self._max_len // block_size)
        own = GroupTables(
            slot_mapping=batch.positions + np.int32(block_size),
            block_tables=np.arange(1, max_blocks + 1, dtype=np.int32)[None, :],
            block_copies=np.zeros((0, 2), np.int32),
        )
        batch.groups = (own,) * len(self._plan.groups)
        return batch


def with_taps(program: Program) -> Program:
    """A copy that keeps what layers add to the residual stream, and the logits of all T rows.

    Backends tap token rows, since the head's rows come in slices. A row's result does not depend
    on the rows beside it, so these are the logits that serving computes.
    """
    body, head = program.split()
    copied = replace(program, ops=[], buffers=list(program.buffers), taps=dict(program.taps))
    for op in body:
        copied.add(op)
        if isinstance(op, Linear) and op.weight.endswith(ENDS_OF_LAYERS):
            copied.tap(f"{LAYER_TAP}{op.weight}", op.out)
    moved: dict[Buffer, Buffer] = {}
    for op in head:
        if isinstance(op, GatherRows):
            moved[op.out] = op.x
        elif isinstance(op, Sample):
            copied.tap(TAP, moved[op.logits])
            copied.add(GatherRows(moved[op.logits], op.logits))
            copied.add(op)
        else:
            copied.add(_on_token_rows(op, copied, moved))
    return copied


def _on_token_rows(op: Op, program: Program, moved: dict[Buffer, Buffer]) -> Op:
    """The same op over T rows, its buffers replaced by counterparts of T rows."""
    for written in op.writes():
        if written not in moved:
            moved[written] = program.buffer(
                f"all.{written.name}", Rows.TOKENS, written.width, written.dtype
            )
    operands = {
        field.name: moved[value]
        for field in fields(op)
        if isinstance(value := getattr(op, field.name), Buffer)
    }
    return replace(op, **operands)
