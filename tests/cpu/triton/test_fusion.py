"""Norms and activations that quantise for the product behind them give the bits of not doing so."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan
from hasten.kernels.conformance.cutting import BatchMaker, Part
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, Program, Rows, WeightName
from hasten.kernels.triton import backend as backend_module
from hasten.kernels.triton.backend import TritonBackend
from hasten.kernels.triton.binding import launch
from hasten.kernels.weights import DenseWeight, Weight

from tests.gpu.models import random_matrix

NUM_ROWS = 5


def record(scheme: str, hidden: int, mlp: int) -> tuple[Program, dict[WeightName, Weight]]:
    """A norm, a product, an activation, a product; both products in `scheme`."""
    rng = np.random.default_rng(3)
    program = Program(1, ())
    x = program.input("x", hidden, DType.BF16)
    residual = program.input("residual", hidden, DType.BF16)
    normed = program.buffer("normed", Rows.TOKENS, hidden, DType.BF16)
    gate_up = program.buffer("gate_up", Rows.TOKENS, 2 * mlp, DType.BF16)
    active = program.buffer("active", Rows.TOKENS, mlp, DType.BF16)
    out = program.buffer("out", Rows.TOKENS, 33, DType.BF16)
    gain, first, second = (WeightName(name) for name in ("gain", "first", "second"))
    program.add(ops.RmsNorm(x, gain, normed, 1e-5, residual))
    program.add(ops.Linear(normed, first, gate_up))
    program.add(ops.ActMul(gate_up, active, ops.Activation.SILU))
    program.add(ops.Linear(active, second, out))
    program.tap("out", out)
    program.tap("normed", normed)
    weights: dict[WeightName, Weight] = {
        gain: DenseWeight(rng.uniform(0.5, 2.0, hidden).astype(np.float32)),
        first: random_matrix(rng, (2 * mlp, hidden), scheme),
        second: random_matrix(rng, (33, mlp), scheme),
    }
    return program, weights


def run(program: Program, weights: dict[WeightName, Weight]) -> tuple[list[str], list[Any]]:
    """The kernels that were launched, and what they gave."""
    launched: list[str] = []

    def counting(kernel: Any, *arguments: Any, **options: Any) -> None:
        launched.append(kernel.__name__)
        launch(kernel, *arguments, **options)

    backend = TritonBackend("cpu", launcher=counting)
    cache = backend.allocate_kv(KVPlan((), (), 16))
    executable = backend.compile(program, weights, cache, Capacity(NUM_ROWS, 1, 1, 16))
    rng = np.random.default_rng(4)
    for name, buffer in program.inputs.items():
        rows = 3 * rng.standard_normal((NUM_ROWS, buffer.width), np.float32)
        rows[1] = 0.0
        executable.set_input(name, rows)
    executable.run(BatchMaker((NUM_ROWS,), ()).batch([Part(0, 0, NUM_ROWS)]))
    return launched, [executable.tap(name) for name in program.taps]


@pytest.mark.parametrize(
    ("scheme", "sizes"),
    [("fp8", (64, 200)), ("fp8-block", (576, 200)), ("fp8-block", (128, 384))],
)
def test_fused_is_unfused(
    monkeypatch: pytest.MonkeyPatch, scheme: str, sizes: tuple[int, int]
) -> None:
    program, weights = record(scheme, *sizes)
    launched, found = run(program, weights)
    assert "quantize_rows_kernel" not in launched
    monkeypatch.setattr(backend_module, "quantizing_pairs", lambda *_, **__: [])
    launched, wanted = run(program, weights)
    assert launched.count("quantize_rows_kernel") == 2
    for one, other in zip(found, wanted, strict=True):
        assert np.isfinite(other).all()
        np.testing.assert_array_equal(one, other)


def test_other_schemes_stay_as_they_are() -> None:
    launched, found = run(*record("int4", 64, 128))
    assert "quantize_rows_kernel" not in launched
    values: npt.NDArray[np.float32] = found[0]
    assert np.isfinite(values).all()
