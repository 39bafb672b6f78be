"""The reference backend around its ops: capacities, block copies, slices, refusals, weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan, UnsupportedOpError, get_backend
from hasten.kernels.conformance.cutting import BatchMaker, Part
from hasten.kernels.conformance.oracles import SamplingRecord
from hasten.kernels.conformance.sampling_cases import SamplingCase, sampling_rows
from hasten.kernels.dtypes import DType
from hasten.kernels.philox import gumbel_noise, philox4x32
from hasten.kernels.program import (
    Capacity,
    KVGroupSpec,
    KVLayer,
    Program,
    Rows,
    WeightName,
)
from hasten.kernels.reference import ReferenceBackend
from hasten.kernels.reference.binding import to_tensor
from hasten.kernels.reference.executable import ReferenceExecutable
from hasten.kernels.reference.philox import NoiseKey, gumbel_noise_all
from hasten.kernels.reference.philox import gumbel_noise as torch_gumbel_noise
from hasten.kernels.reference.philox import philox4x32 as torch_philox
from hasten.kernels.reference.sample import most_likely, sample_rows
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import GroupTables, StepBatch
from hasten.kernels.weights import DenseWeight

TABLE = WeightName("table")
CAPACITY = Capacity(max_tokens=8, max_requests=2, max_logit_rows=3, max_model_len=64)


def sampler(logits: npt.NDArray[np.float32]) -> tuple[ReferenceExecutable, SamplingCase]:
    case = SamplingCase("sample", "", logits, (SamplingRecord(),) * len(logits))
    program, weights = case.program()
    backend = ReferenceBackend()
    capacity = Capacity(8, 8, 3, 64)
    return backend.compile(
        program, weights, backend.allocate_kv(KVPlan((), (), 16)), capacity
    ), case


# --- steps --------------------------------------------------------------------------------------


def test_the_head_runs_in_slices_and_joins_them() -> None:
    logits = np.eye(8, 10, dtype=np.float32)
    executable, case = sampler(logits)
    assert executable.run(case.batch(range(8))).token_ids.tolist() == list(range(8))
    assert executable.run(case.batch((2,))).token_ids.tolist() == [2]
    empty = executable.run(case.batch(()))
    assert (empty.token_ids.shape, empty.top_ids.shape) == ((0,), (0, 0))


def test_slices_with_different_numbers_of_alternatives_are_padded() -> None:
    executable, case = sampler(np.eye(5, 10, dtype=np.float32))
    batch = case.batch(range(5))
    batch.sampling.num_logprobs[:] = (-1, 0, -1, 4, 2)
    result = executable.run(batch)
    assert result.top_ids.shape == (5, 4)
    assert (result.top_ids[:3] == -1).all()
    assert np.isnan(result.top_logprobs[4, 2:]).all()
    assert np.isnan(result.logprobs).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "logits of row 4 hold nan"), (np.inf, "logits of row 4 hold inf")],
)
def test_logits_that_are_no_numbers_are_an_error(value: float, message: str) -> None:
    logits = np.zeros((6, 10), dtype=np.float32)
    logits[4, 7] = value
    executable, case = sampler(logits)
    with pytest.raises(FloatingPointError, match=message):
        executable.run(case.batch(range(6)))


def test_forbidding_every_token_is_an_error() -> None:
    record = SamplingRecord(bias=tuple((i, float("-inf")) for i in range(4)))
    with pytest.raises(FloatingPointError, match="row 0 allow no token"):
        sample_rows(torch.zeros(1, 4), sampling_rows([record], 4))


def test_sampling_leaves_the_logits_alone() -> None:
    logits = torch.arange(12.0).view(2, 6)
    before = logits.clone()
    record = SamplingRecord(temperature=0.5, repetition_penalty=2.0, counts=((5, 1),), min_p=0.1)
    sample_rows(logits, sampling_rows([record, record], 6))
    assert torch.equal(logits, before)


def test_a_batch_beyond_the_capacity_is_refused() -> None:
    executable, case = sampler(np.zeros((9, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="9 tokens exceed the 8 compiled"):
        executable.run(case.batch(range(9)))
    batch = case.batch((0,))
    batch.seq_lens = np.array([65], dtype=np.int32)
    with pytest.raises(ValueError, match="length 65 exceeds the 64 compiled"):
        executable.run(batch)
    batch.seq_lens = np.ones(9, dtype=np.int32)
    with pytest.raises(ValueError, match="9 requests exceed the 8 compiled"):
        executable.run(batch)


def test_block_copies_are_carried_out_before_the_step() -> None:
    """A copied block gives the same attention as the block it was copied from."""
    rng = np.random.default_rng(3)
    spec = KVGroupSpec(1, 1, 8, DType.F32)
    program = Program(vocab_size=20, kv_groups=(spec,))
    qkv = program.buffer("qkv", Rows.TOKENS, 24, DType.F32)
    out = program.buffer("out", Rows.TOKENS, 8, DType.F32)
    layer = KVLayer(0, 0)
    program.add(ops.Embed(TABLE, qkv))
    program.add(ops.RopeStoreKV(qkv, layer, 1, 1, 8, ops.Rope((1.0, 0.1, 0.01, 0.001))))
    program.add(ops.PagedAttention(qkv, out, layer, 1, 1, 8, 0.35))
    program.tap("out", out)
    backend = ReferenceBackend()
    weights = {TABLE: DenseWeight(rng.standard_normal((20, 24)).astype(np.float32))}
    maker = BatchMaker((5, 5), (spec,))
    plan = KVPlan((spec,), (maker.num_blocks,), 16)
    executable = backend.compile(program, weights, backend.allocate_kv(plan), CAPACITY)

    executable.run(maker.batch([Part(0, 0, 4)]))
    first, second = maker.batch([Part(0, 4, 5)]), maker.batch([Part(1, 4, 5)])
    second.token_ids = first.token_ids
    source, destination = (b.groups[0].block_tables[b.table_rows[0], 0] for b in (first, second))
    copies = np.array([[source, destination]], dtype=np.int32)
    executable.run(with_copies(second, copies))
    copied = executable.tap("out").copy()
    executable.run(first)
    np.testing.assert_array_equal(copied, executable.tap("out"))


def with_copies(batch: StepBatch, copies: npt.NDArray[np.int32]) -> StepBatch:
    tables = batch.groups[0]
    batch.groups = (GroupTables(tables.slot_mapping, tables.block_tables, copies),)
    return batch


# --- refusals -----------------------------------------------------------------------------------


def test_unknown_dtypes_are_refused_by_name() -> None:
    backend = ReferenceBackend()
    spec = KVGroupSpec(1, 1, 8, DType.I32)
    with pytest.raises(UnsupportedOpError, match="KV cache of int32"):
        backend.kv_block_bytes(spec, 16)
    program = Program(vocab_size=4, kv_groups=())
    program.add(ops.Embed(TABLE, program.buffer("x", Rows.TOKENS, 4, DType.F16)))
    cache = backend.allocate_kv(KVPlan((), (), 16))
    with pytest.raises(UnsupportedOpError, match="embed: activations of float16"):
        backend.compile(
            program, {TABLE: DenseWeight(np.zeros((4, 4), np.float32))}, cache, CAPACITY
        )


def test_an_op_outside_the_table_is_refused() -> None:
    class Unheard(ops.Op):
        name = "unheard"

        def reads(self) -> tuple[Any, ...]:
            return ()

        writes = reads

    assert ReferenceBackend().supports(Unheard(), {}) == "the reference backend has no such op"


def test_the_cache_weighs_what_the_plan_says() -> None:
    backend = get_backend("reference")
    spec = KVGroupSpec(num_layers=3, num_kv_heads=2, head_size=64, dtype=DType.BF16)
    assert backend.kv_block_bytes(spec, 16) == 3 * 2 * 2 * 64 * 16 * 2
    cache = backend.allocate_kv(KVPlan((spec,), (10,), 16))
    one_slot = 3 * 2 * 2 * 64 * 2  # the slot of zeros
    assert cache.num_bytes == 10 * backend.kv_block_bytes(spec, 16) + one_slot


# --- weights, noise, ties -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_read_only_maps_become_tensors(tmp_path: Path, dtype: type[np.generic]) -> None:
    values = np.linspace(-2, 2, 24).astype(dtype).reshape(4, 6)
    values.tofile(tmp_path / "weight")
    mapped = np.memmap(tmp_path / "weight", dtype=dtype, mode="r", shape=(4, 6))
    tensor = to_tensor(DenseWeight(mapped), torch.float32, torch.device("cpu"))
    np.testing.assert_array_equal(tensor.numpy(), values.astype(np.float32))


def test_torch_philox_is_numpy_philox() -> None:
    rng = np.random.default_rng(1)
    counters = rng.integers(0, 2**32, (500, 4), dtype=np.uint64)
    low, high = (int(word) for word in rng.integers(0, 2**32, 2))
    a, b, c, d = (torch.from_numpy(counters[:, i].astype(np.int64)) for i in range(4))
    words = torch.stack(torch_philox((a, b, c, d), (low, high)), dim=-1)
    np.testing.assert_array_equal(words.numpy(), philox4x32(counters, (low, high)))


def test_torch_noise_is_numpy_noise() -> None:
    key = NoiseKey(seed=2**64 - 3, position=8191, sample_idx=127)
    every = gumbel_noise_all(key, 1003, torch.device("cpu")).numpy()
    expected = gumbel_noise(key.seed, key.position, key.sample_idx, np.arange(1003))
    np.testing.assert_allclose(every, expected, rtol=1e-13)
    some = torch.tensor([1002, 0, 5, 5, 7])
    np.testing.assert_array_equal(torch_gumbel_noise(key, some).numpy(), every[some.numpy()])


def test_most_likely_prefers_low_ids_among_equals() -> None:
    values = torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    assert most_likely(values, 4).tolist() == [1, 3, 2, 4]
    assert most_likely(values, 99).tolist() == [1, 3, 2, 4, 5, 0]


def test_greedy_rows_ask_for_nothing() -> None:
    result = sample_rows(torch.tensor([[0.0, 2.0, 2.0]]), greedy_rows(1))
    assert result.token_ids.tolist() == [1]
    assert np.isnan(result.logprobs).all()
