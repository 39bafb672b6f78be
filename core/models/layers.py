"""Cutting recorded programs: one layer alone, and what lies around its ops.

A recorded step is data, so a layer can be taken out of it and run by itself, on hidden states given
as an embedding table: calibration does that. Exercised by `pytest tests/cpu/quant`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from hasten.core.models.weights import EMBED, layer_weight
from hasten.kernels.ops import Embed, Linear, Op, PagedAttention, RmsNorm, RopeStoreKV
from hasten.kernels.program import Buffer, KVLayer, Program

ENTERING = EMBED
"""The weight that holds the hidden states entering a layer program: row i is token id i's."""
INPUTS = "inputs."
"""Prefix of the taps on what each linear reads, followed by the weight's name in its layer."""
ROTATED = "rotated"
"""The tap of q | k | v after the rotation: what attention reads and the cache is given."""
RESIDUAL, DELTA = "residual", "delta"
"""The taps whose sum is what leaves the layer."""


def layer_program(program: Program, layer_idx: int) -> Program:
    """One layer of a recorded decoder, from `ENTERING` to `RESIDUAL` + `DELTA`, tapped."""
    ops = _layer_ops(program.ops, layer_idx)
    attention = next(op for op in ops if isinstance(op, PagedAttention))
    spec = replace(program.kv_groups[attention.kv.group_id], num_layers=1)
    made = Program(program.vocab_size, (spec,))
    buffers = {buffer: buffer for op in ops for buffer in (*op.reads(), *op.writes())}
    for old in buffers:
        buffers[old] = made.buffer(old.name, old.rows, old.width, old.dtype)
    first = ops[0]
    assert isinstance(first, RmsNorm)
    residual = first.residual or first.x
    made.add(Embed(ENTERING, buffers[residual]))
    ops[0] = replace(first, x=residual, residual=None)
    for op in ops:
        moved = _moved(op, buffers)
        if isinstance(moved, Linear):
            made.tap(INPUTS + moved.weight.rpartition(".")[2], moved.x)
        if isinstance(moved, PagedAttention):
            made.tap(ROTATED, moved.qkv)
        made.add(moved)
    last = ops[-1]
    assert isinstance(last, Linear)
    made.tap(RESIDUAL, buffers[residual])
    made.tap(DELTA, buffers[last.out])
    return made


def _layer_ops(ops: Sequence[Op], layer_idx: int) -> list[Op]:
    """The ops of one layer: from the first to the last that reads a weight of it."""
    prefix = layer_weight(layer_idx, "")
    own = [
        index
        for index, op in enumerate(ops)
        if any(name.startswith(prefix) for name in op.weights())
    ]
    return list(ops[own[0] : own[-1] + 1])


def _moved(op: Op, buffers: dict[Buffer, Buffer]) -> Op:
    """`op` on other buffers, its cache being the only layer of the only group."""
    changes: dict[str, object] = {
        field.name: buffers[value]
        for field in fields(op)
        if isinstance(value := getattr(op, field.name), Buffer)
    }
    if isinstance(op, RopeStoreKV | PagedAttention):
        changes["kv"] = KVLayer(0, 0)
    return replace(op, **changes)
