"""The recorder: buffers, ops that fit, the two halves, taps."""

from __future__ import annotations

import pytest
from hasten.kernels import ops
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Buffer, KVLayer, Program, Rows, WeightName

WEIGHT = WeightName("weight")
ROPE = ops.Rope((1.0, 0.1))


def tokens(program: Program, name: str, width: int) -> Buffer:
    return program.buffer(name, Rows.TOKENS, width, DType.F32)


def test_ops_are_kept_in_order_and_split_at_the_gather() -> None:
    program = Program(vocab_size=10, kv_groups=())
    x = tokens(program, "x", 8)
    rows = program.buffer("rows", Rows.LOGITS, 8, DType.F32)
    logits = program.buffer("logits", Rows.LOGITS, 10, DType.F32)
    recorded = [
        ops.Embed(WeightName("table"), x),
        ops.RmsNorm(x, WEIGHT, x, 1e-5),
        ops.GatherRows(x, rows),
        ops.Linear(rows, WeightName("table"), logits),
        ops.Sample(logits),
    ]
    for op in recorded:
        program.add(op)
    body, head = program.split()
    assert [*body, *head] == recorded
    assert head[0] is recorded[2]
    assert program.weight_names() == ("table", "weight")


def test_a_program_without_a_head_is_all_body() -> None:
    program = Program(vocab_size=10, kv_groups=())
    program.add(ops.Embed(WEIGHT, tokens(program, "x", 8)))
    assert program.split() == ((program.ops[0],), ())


def test_buffers_of_another_program_are_refused() -> None:
    other = tokens(Program(vocab_size=10, kv_groups=()), "x", 8)
    with pytest.raises(ValueError, match="buffer 'x' is not of this program"):
        Program(vocab_size=10, kv_groups=()).add(ops.Embed(WEIGHT, other))


def test_a_buffer_without_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="width must be at least 1"):
        tokens(Program(vocab_size=10, kv_groups=()), "x", 0)


def test_a_tap_keeps_a_buffer_of_its_own() -> None:
    program = Program(vocab_size=10, kv_groups=())
    x = tokens(program, "x", 8)
    program.add(ops.Embed(WEIGHT, x))
    program.tap("hidden", x)
    kept = program.taps["hidden"]
    assert program.ops[-1] == ops.Tap(x, kept)
    assert (kept.width, kept.dtype) == (8, DType.F32)
    assert kept != x
    with pytest.raises(ValueError, match="recorded twice"):
        program.tap("hidden", x)


def test_operands_that_do_not_fit_are_refused() -> None:
    program = Program(vocab_size=10, kv_groups=())
    narrow, wide = tokens(program, "narrow", 8), tokens(program, "wide", 16)
    rows = program.buffer("rows", Rows.LOGITS, 8, DType.F32)
    layer = KVLayer(0, 0)
    misfits: list[tuple[ops.Op, str]] = [
        (ops.RmsNorm(narrow, WEIGHT, wide, 1e-5), "widths differ"),
        (ops.Linear(narrow, WEIGHT, rows), "different row symbols"),
        (ops.ActMul(wide, wide, ops.Activation.SILU), "not twice as wide"),
        (ops.GatherRows(narrow, wide), "out must have L rows"),
        (ops.GatherRows(rows, rows), "x must have T rows"),
        (ops.GatherRows(wide, rows), "widths differ"),
        (ops.Tap(narrow, wide), "widths differ"),
        (ops.Sample(narrow), "logits must have L rows"),
        (ops.RopeStoreKV(wide, layer, 1, 1, 4, ROPE), "16 wide, not 12"),
        (ops.RopeStoreKV(narrow, layer, 2, 1, 2, ROPE), "rotary_dim exceeds"),
        (ops.PagedAttention(wide, narrow, layer, 3, 2, 4, 0.5), "heads do not divide"),
        (ops.PagedAttention(wide, narrow, layer, 4, 2, 4, 0.5), "out has wrong width"),
    ]
    for op, message in misfits:
        with pytest.raises(ValueError, match=message):
            program.add(op)
    assert program.ops == []


def test_every_op_names_what_it_touches() -> None:
    program = Program(vocab_size=10, kv_groups=())
    x, out = tokens(program, "x", 16), tokens(program, "out", 16)
    norm = ops.RmsNorm(x, WEIGHT, out, 1e-5, residual=x)
    assert (norm.reads(), norm.writes(), norm.weights()) == ((x, x), (out, x), (WEIGHT,))
    linear = ops.Linear(x, WEIGHT, out, WeightName("bias"))
    assert (linear.reads(), linear.writes()) == ((x,), (out,))
    assert linear.weights() == (WEIGHT, "bias")
    rope = ops.RopeStoreKV(x, KVLayer(0, 0), 2, 1, 4, ROPE, k_norm=WeightName("k"))
    assert (rope.reads(), rope.writes(), rope.weights()) == ((x,), (x,), ("k",))
