"""Packed weights: embedding rows give them back exactly, and products match an integer oracle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan
from hasten.kernels.cpu import CpuBackend, LinearInputs
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Buffer, Capacity, Program, Rows, WeightName
from hasten.kernels.weights import (
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    StackedWeight,
    Weight,
)
from ml_dtypes import bfloat16, float8_e4m3fn

from tests.helpers.flat_steps import Part, Sequences

F32 = npt.NDArray[np.float32]
TABLE, WEIGHT, BIAS = WeightName("table"), WeightName("weight"), WeightName("bias")
ROW_COUNTS = (1, 2, 5, 6, 7, 12, 13, 37)
NUM_ROWS = 64


def run_taps(
    backend: CpuBackend, program: Program, weights: dict[WeightName, Weight], token_ids: list[int]
) -> F32:
    cache = backend.allocate_kv(KVPlan((), (), 16))
    executable = backend.compile(program, weights, cache, Capacity(NUM_ROWS, 1, 1, NUM_ROWS))
    sequences = Sequences(1, NUM_ROWS, num_groups=0)
    none = np.zeros(0, np.int32)
    executable.run(sequences.batch([Part(0, 0, token_ids)], logit_rows=none))
    return executable.tap("out").copy()


def random_integers(
    rng: np.random.Generator, bits: int, rows: int, width: int, group: int, *, offset: bool
) -> GroupedIntWeight:
    shape = (rows, width // group)
    q: npt.NDArray[np.uint8] | npt.NDArray[np.int8]
    if bits == 4:
        q = rng.integers(0, 256, (rows, width // 2)).astype(np.uint8)
    else:
        q = rng.integers(-128, 128, (rows, width)).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, shape).astype(np.float16)
    return GroupedIntWeight(
        bits, group, q, scale, rng.normal(0, 0.5, shape).astype(np.float16) if offset else None
    )


def random_fp8(rows: int, width: int, block: tuple[int, int]) -> Fp8Weight:
    rng = np.random.default_rng(8)
    data = rng.normal(0, 60, (rows, width)).clip(-448, 448)
    data[0] /= 4096  # numbers below the smallest normal one, 2^-6
    scale = rng.uniform(0.01, 0.1, (-(-rows // block[0]), -(-width // block[1])))
    return Fp8Weight(data.astype(float8_e4m3fn), scale.astype(np.float32), block)


def weights_of_all_formats(rows: int, width: int) -> dict[str, Weight]:
    rng = np.random.default_rng(7)
    dense = rng.normal(size=(rows, width)).astype(np.float32)
    made: dict[str, Weight] = {
        "float32": DenseWeight(dense),
        "float16": DenseWeight(dense.astype(np.float16)),
        "fp8, a scale per row": random_fp8(rows, width, (1, width)),
        "fp8, a scale for all": random_fp8(rows, width, (rows, width)),
        "fp8, blocks": random_fp8(rows, width, (16, 32)),
    }
    if width % 32 == 0:
        made["int4"] = random_integers(rng, 4, rows, width, 32, offset=True)
        made["int4, no offset"] = random_integers(rng, 4, rows, width, 32, offset=False)
        made["int8"] = random_integers(rng, 8, rows, width, 32, offset=False)
        made["int8, offset"] = random_integers(rng, 8, rows, width, 32, offset=True)
        wide = random_integers(rng, 4, rows, width, width, offset=True)
        scale, offset = wide.scale.astype(np.float32), wide.offset
        assert offset is not None
        made["int4, a group per row, float32 scales"] = GroupedIntWeight(
            4, width, wide.q, scale, offset.astype(np.float32)
        )
    return made


def fp8_tables() -> dict[str, Weight]:
    return {
        "a scale per row": random_fp8(70, 200, (1, 200)),
        "blocks of 128": random_fp8(70, 200, (128, 128)),
        "blocks of 32 inputs": random_fp8(70, 200, (1, 32)),
    }


def embedded(program: Program, width: int, dtype: DType) -> Buffer:
    x = program.buffer("x", Rows.TOKENS, width, dtype)
    program.add(ops.Embed(TABLE, x))
    return x


@pytest.mark.parametrize(("rows", "width"), [(64, 96), (45, 64), (33, 7)])
def test_embedding_rows_are_the_dequantised_weights(isa: str, rows: int, width: int) -> None:
    for name, weight in weights_of_all_formats(rows, width).items():
        program = Program(rows, ())
        program.tap("out", embedded(program, width, DType.BF16))
        got = run_taps(CpuBackend(1, isa=isa), program, {TABLE: weight}, list(range(rows)))
        np.testing.assert_allclose(got, weight.dequantize(), rtol=3e-7, atol=1e-7, err_msg=name)


def quantised_inputs(x: F32) -> npt.NDArray[np.float64]:
    """What the int8 kernels see: groups of 32 rounded to 120 steps of their largest magnitude."""
    groups = x.reshape(len(x), -1, 32).astype(np.float64)
    scale = np.abs(groups).max(axis=2, keepdims=True) / 120
    rounded: npt.NDArray[np.float64] = np.rint(groups / scale) * scale
    return rounded.reshape(x.shape)


@pytest.mark.parametrize("num_outputs", [32, 70])
def test_integer_products_match_the_oracle_at_any_number_of_rows(
    isa: str, num_outputs: int
) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(NUM_ROWS, 64)).astype(np.float32)
    bias = rng.normal(size=num_outputs).astype(np.float32)
    for name, weight in weights_of_all_formats(num_outputs, 64).items():
        if not isinstance(weight, GroupedIntWeight):
            continue
        program = Program(NUM_ROWS, ())
        out = program.buffer("y", Rows.TOKENS, num_outputs, DType.BF16)
        program.add(ops.Linear(embedded(program, 64, DType.BF16), WEIGHT, out, BIAS))
        program.tap("out", out)
        weights: dict[WeightName, Weight] = {
            TABLE: DenseWeight(x),
            WEIGHT: weight,
            BIAS: DenseWeight(bias),
        }
        want = quantised_inputs(x) @ weight.dequantize().astype(np.float64).T + bias
        backend = CpuBackend(2, isa=isa)
        whole = run_taps(backend, program, weights, list(range(NUM_ROWS)))
        np.testing.assert_allclose(whole, want, atol=2e-5 * np.abs(want).max(), err_msg=name)
        for count in ROW_COUNTS:
            rows = run_taps(backend, program, weights, list(range(count)))
            np.testing.assert_array_equal(rows, whole[:count], err_msg=f"{name}, {count} rows")


@pytest.mark.parametrize("name", fp8_tables())
def test_fp8_products_match_the_oracle_at_any_number_of_rows(isa: str, name: str) -> None:
    weight = fp8_tables()[name]
    x = np.random.default_rng(11).normal(size=(NUM_ROWS, 200)).astype(bfloat16).astype(np.float32)
    program = Program(NUM_ROWS, ())
    out = program.buffer("y", Rows.TOKENS, 70, DType.BF16)
    program.add(ops.Linear(embedded(program, 200, DType.BF16), WEIGHT, out))
    program.tap("out", out)
    weights: dict[WeightName, Weight] = {TABLE: DenseWeight(x), WEIGHT: weight}
    want = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    backend = CpuBackend(2, isa=isa)
    whole = run_taps(backend, program, weights, list(range(NUM_ROWS)))
    np.testing.assert_allclose(whole, want, atol=3e-6 * np.abs(want).max())
    for count in ROW_COUNTS:
        rows = run_taps(backend, program, weights, list(range(count)))
        np.testing.assert_array_equal(rows, whole[:count], err_msg=f"{count} rows")


@pytest.mark.parametrize("inputs", ["largest", "smallest", "alternating"])
@pytest.mark.parametrize("nibbles", [0x00, 0xFF, 0x0F, 0xF0])
def test_extreme_integers_do_not_overflow(isa: str, inputs: str, nibbles: int) -> None:
    """Every factor of a product at its limit, by way of few rows and of many."""
    signs = {
        "largest": np.ones(64, np.float32),
        "smallest": -np.ones(64, np.float32),
        "alternating": np.where(np.arange(64) // 16 % 2, -1, 1).astype(np.float32),
    }[inputs]
    x = np.tile(signs, (NUM_ROWS, 1))
    ones, zeros = np.ones((32, 2), np.float16), np.zeros((32, 2), np.float16)
    weight = GroupedIntWeight(4, 32, np.full((32, 32), nibbles, np.uint8), ones, zeros)
    program = Program(NUM_ROWS, ())
    out = program.buffer("y", Rows.TOKENS, 32, DType.BF16)
    program.add(ops.Linear(embedded(program, 64, DType.BF16), WEIGHT, out))
    program.tap("out", out)
    weights: dict[WeightName, Weight] = {TABLE: DenseWeight(x), WEIGHT: weight}
    want = (x @ weight.dequantize().T).astype(np.float32)
    for count in (1, NUM_ROWS):
        got = run_taps(CpuBackend(1, isa=isa), program, weights, list(range(count)))
        np.testing.assert_allclose(got, want[:count], rtol=1e-6)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_gated_product_equals_its_two_halves(isa: str, dtype: DType) -> None:
    """A fused linear and act_mul against the same ops kept apart by a tap between them."""
    rng = np.random.default_rng(4)
    weights: dict[WeightName, Weight] = {
        TABLE: DenseWeight(rng.normal(size=(NUM_ROWS, 64)).astype(np.float32)),
        WEIGHT: random_integers(rng, 4, 128, 64, 32, offset=True),
    }

    def outputs(*, fused: bool) -> F32:
        program = Program(NUM_ROWS, ())
        gate_up = program.buffer("gate_up", Rows.TOKENS, 128, dtype)
        act = program.buffer("act", Rows.TOKENS, 64, dtype)
        program.add(ops.Linear(embedded(program, 64, dtype), WEIGHT, gate_up))
        if not fused:
            program.tap("between", gate_up)
        program.add(ops.ActMul(gate_up, act, ops.Activation.GELU_TANH))
        program.tap("out", act)
        return run_taps(CpuBackend(1, isa=isa), program, weights, list(range(NUM_ROWS)))

    np.testing.assert_array_equal(outputs(fused=True), outputs(fused=False))


def test_stacked_parts_fill_their_columns(isa: str) -> None:
    rng = np.random.default_rng(5)
    parts = (
        DenseWeight(rng.normal(size=(20, 32)).astype(np.float32)),
        random_integers(rng, 8, 33, 32, 32, offset=False),
    )
    x = rng.normal(size=(NUM_ROWS, 32)).astype(np.float32)
    program = Program(NUM_ROWS, ())
    out = program.buffer("y", Rows.TOKENS, 53, DType.F32)
    program.add(ops.Linear(embedded(program, 32, DType.F32), WEIGHT, out))
    program.tap("out", out)
    weights: dict[WeightName, Weight] = {TABLE: DenseWeight(x), WEIGHT: StackedWeight(parts)}
    got = run_taps(CpuBackend(2, isa=isa), program, weights, list(range(9)))
    want = x[:9] @ weights[WEIGHT].dequantize().T
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_bfloat16_inputs_are_closer_than_int8_ones(isa: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_t(3, size=(NUM_ROWS, 64)).astype(np.float32)
    weight = random_integers(rng, 4, 64, 64, 32, offset=True)
    want = x @ weight.dequantize().T

    def error(inputs: LinearInputs) -> float:
        program = Program(NUM_ROWS, ())
        out = program.buffer("y", Rows.TOKENS, 64, DType.BF16)
        program.add(ops.Linear(embedded(program, 64, DType.BF16), WEIGHT, out))
        program.tap("out", out)
        backend = CpuBackend(1, inputs, isa)
        weights: dict[WeightName, Weight] = {TABLE: DenseWeight(x), WEIGHT: weight}
        got = run_taps(backend, program, weights, list(range(NUM_ROWS)))
        return float(np.sqrt(np.mean((got - want) ** 2)))

    assert error(LinearInputs.BF16) < error(LinearInputs.INT8)
