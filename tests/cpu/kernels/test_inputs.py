"""Rows that a caller writes before a step and reads after it, on every backend."""

from __future__ import annotations

import numpy as np
from hasten.core.latency import Chunk
from hasten.core.runner import dummy_batch
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan, get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, Program, Rows, WeightName
from hasten.kernels.weights import DenseWeight

TABLE, SQUARE = WeightName("table"), WeightName("square")
WIDTH, MAX_LOGIT_ROWS = 32, 4


def test_inputs_are_added_multiplied_and_tapped_in_body_and_head(kernels: str) -> None:
    rng = np.random.default_rng(0)
    table, square = (rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
    program = Program(WIDTH, ())
    given = program.input("given", WIDTH, DType.F32)
    embedded = program.buffer("embedded", Rows.TOKENS, WIDTH, DType.F32)
    gathered = program.buffer("gathered", Rows.LOGITS, WIDTH, DType.F32)
    logits = program.buffer("logits", Rows.LOGITS, WIDTH, DType.F32)
    program.add(ops.Embed(TABLE, embedded))
    program.add(ops.AddScaled(given, embedded))
    program.tap("sum", embedded)
    program.add(ops.GatherRows(embedded, gathered))
    program.tap("head", gathered)
    program.add(ops.Linear(gathered, SQUARE, logits))
    program.tap("product", logits)
    program.add(ops.Sample(logits))
    backend = get_backend(kernels)
    plan = KVPlan((), (), 16)
    capacity = Capacity(8, 8, MAX_LOGIT_ROWS, max_model_len=8)
    executable = backend.compile(
        program,
        {TABLE: DenseWeight(table), SQUARE: DenseWeight(square)},
        backend.allocate_kv(plan),
        capacity,
    )
    for lengths in ((3, 2), (1,), (2, 4, 1)):  # given anew in each step
        rows = rng.standard_normal((sum(lengths), WIDTH)).astype(np.float32)
        executable.set_input("given", rows)
        executable.run(dummy_batch([Chunk(0, n, 1) for n in lengths], plan, max_model_len=8))
        expected = rows + table[0]
        last = expected[np.cumsum(lengths) - 1]
        np.testing.assert_allclose(executable.tap("sum"), expected, atol=1e-6)
        np.testing.assert_allclose(executable.tap("head"), last, atol=1e-6)
        np.testing.assert_allclose(executable.tap("product"), last @ square.T, atol=1e-4)


def test_of_more_logit_rows_than_fit_the_last_slice_is_tapped(kernels: str) -> None:
    program = Program(WIDTH, ())
    rows = program.buffer("rows", Rows.TOKENS, WIDTH, DType.F32)
    logits = program.buffer("logits", Rows.LOGITS, WIDTH, DType.F32)
    program.add(ops.Embed(TABLE, rows))
    program.add(ops.GatherRows(rows, logits))
    program.tap("logits", logits)
    program.add(ops.Sample(logits))
    backend, plan = get_backend(kernels), KVPlan((), (), 16)
    weights = {TABLE: DenseWeight(np.eye(WIDTH, dtype=np.float32))}
    capacity = Capacity(8, 8, MAX_LOGIT_ROWS, max_model_len=8)
    executable = backend.compile(program, weights, backend.allocate_kv(plan), capacity)
    executable.run(dummy_batch([Chunk(0, 6, 6)], plan, max_model_len=8))
    assert executable.tap("logits").shape == (2, WIDTH)
