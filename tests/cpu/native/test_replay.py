"""Whole models replayed: equal bits however cut or threaded, and bad steps refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.loading import LoadedModel
from hasten.kernels.backend import Executable, KVPlan
from hasten.kernels.cpu import CpuBackend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, WeightName
from hasten.kernels.step import StepBatch
from hasten.kernels.weights import DenseWeight
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.flat_steps import Part, Sequences, greedy_rows
from tests.helpers.random_models import random_model, tiny_config

F32 = npt.NDArray[np.float32]
VOCAB = 96
MAX_LEN = 640
PROMPT = [int(i) for i in np.random.default_rng(9).integers(0, VOCAB, 600)]
"""Longer than two attention splits."""


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return random_model(tiny_config(VOCAB))


def bind(backend: CpuBackend, model: LoadedModel, dtype: DType = DType.BF16) -> Executable:
    program = model.build_program(dtype, dtype)
    num_blocks = Sequences(4, MAX_LEN).num_blocks
    plan = KVPlan(program.kv_groups, (num_blocks,) * len(program.kv_groups), 16)
    capacity = Capacity(MAX_LEN, 4, 8, MAX_LEN)
    return backend.compile(program, model.weights, backend.allocate_kv(plan), capacity)


def score(executable: Executable, prompt: list[int], chunk: int, groups: int = 1) -> F32:
    """Log-probability of each next token, in steps of `chunk`."""
    sequences = Sequences(4, MAX_LEN, groups)
    found = []
    for start in range(0, len(prompt), chunk):
        tokens = prompt[start : start + chunk]
        targets = np.array((*prompt[start + 1 : start + chunk + 1], 0)[: len(tokens)], np.int32)
        rows = np.arange(len(tokens), dtype=np.int32)
        batch = sequences.batch([Part(0, start, tokens)], greedy_rows(len(rows), targets), rows)
        found.append(executable.run(batch).logprobs.copy())
    return np.concatenate(found)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_bits_do_not_depend_on_threads_or_chunks(
    isa: str, model: LoadedModel, dtype: DType
) -> None:
    whole = score(bind(CpuBackend(1, isa=isa), model, dtype), PROMPT, 600)
    assert np.isfinite(whole).all()
    for threads, chunk in ((2, 600), (3, 7), (2, 64), (2, 1)):
        got = score(bind(CpuBackend(threads, isa=isa), model, dtype), PROMPT, chunk)
        np.testing.assert_array_equal(got, whole, err_msg=f"{threads} threads, chunks of {chunk}")


@pytest.mark.parametrize("head_size", [16, 32, 64, 96])
def test_windowed_layers_agree_in_bits(isa: str, head_size: int) -> None:
    """Whether a tile of queries is high enough for a matrix unit, or its last rows are few."""
    model = random_model(tiny_config(VOCAB, (None, 40), qk_norm=True, head_size=head_size))
    whole = score(bind(CpuBackend(2, isa=isa), model), PROMPT, 600, groups=2)
    for chunk in (33, 2, 1):
        got = score(bind(CpuBackend(2, isa=isa), model), PROMPT, chunk, groups=2)
        np.testing.assert_array_equal(got, whole, err_msg=f"chunks of {chunk}")


def test_instruction_sets_agree_but_for_rounding(
    make_backend: Callable[..., CpuBackend], isa: str, model: LoadedModel
) -> None:
    portable = score(bind(make_backend(1, isa="portable"), model, DType.F32), PROMPT, 600)
    own = score(bind(make_backend(1, isa=isa), model, DType.F32), PROMPT, 600)
    np.testing.assert_allclose(own, portable, atol=2e-4)


def test_rows_side_by_side_equal_rows_alone(isa: str, model: LoadedModel) -> None:
    executable = bind(CpuBackend(2, isa=isa), model)
    sequences = Sequences(4, MAX_LEN)
    parts = [Part(i, 0, PROMPT[i * 50 : i * 50 + 17 + i]) for i in range(4)]
    together = executable.run(sequences.batch(parts)).logprobs.copy()
    alone = [executable.run(sequences.batch([part])).logprobs[0] for part in parts]
    np.testing.assert_array_equal(together, alone)


def test_logits_of_some_rows_equal_those_of_all(isa: str, model: LoadedModel) -> None:
    """The tail of the step runs only from the first row whose logits are wanted."""
    executable = bind(CpuBackend(2, isa=isa), model)
    sequences = Sequences(4, MAX_LEN)
    part = Part(0, 0, PROMPT[:100])
    every = np.arange(100, dtype=np.int32)
    whole = executable.run(sequences.batch([part], logit_rows=every)).logprobs.copy()
    for rows in ([99], [40, 77], [3]):
        wanted = np.array(rows, np.int32)
        some = executable.run(sequences.batch([part], logit_rows=wanted)).logprobs
        np.testing.assert_array_equal(some, whole[rows])


def test_nan_in_the_logits_is_an_error(make_backend: Callable[..., CpuBackend]) -> None:
    model = random_model(tiny_config(VOCAB))
    name = WeightName("model.norm.weight")
    if name not in model.weights:
        name = next(n for n, w in model.weights.items() if len(w.shape) == 1)
    broken = DenseWeight(np.full(model.weights[name].shape, np.nan, np.float32))
    model = replace(model, weights={**model.weights, name: broken})
    with pytest.raises(FloatingPointError, match="NaN"):
        bind(make_backend(1), model).run(Sequences(4, MAX_LEN).batch([Part(0, 0, [1, 2, 3])]))


MUTATIONS: dict[str, Callable[[StepBatch, int], StepBatch]] = {
    "token_ids": lambda b, v: replace(b, token_ids=np.full_like(b.token_ids, v)),
    "positions": lambda b, v: replace(b, positions=np.full_like(b.positions, v)),
    "query_starts": lambda b, v: replace(b, query_starts=np.full_like(b.query_starts, v)),
    "seq_lens": lambda b, v: replace(b, seq_lens=np.full_like(b.seq_lens, min(v, 0))),
    "table_rows": lambda b, v: replace(b, table_rows=np.full_like(b.table_rows, v)),
    "logit_rows": lambda b, v: replace(b, logit_rows=np.full_like(b.logit_rows, v)),
    "slots": lambda b, v: replace(
        b,
        groups=(replace(b.groups[0], slot_mapping=np.full_like(b.groups[0].slot_mapping, v)),),
    ),
    "tables": lambda b, v: replace(
        b,
        groups=(replace(b.groups[0], block_tables=np.full_like(b.groups[0].block_tables, v)),),
    ),
    "copies": lambda b, v: replace(
        b, groups=(replace(b.groups[0], block_copies=np.full((1, 2), v, np.int32)),)
    ),
    "short": lambda b, _: replace(b, positions=b.positions[:-1]),
    "no tables": lambda b, _: replace(b, groups=()),
}
OUTSIDE = st.one_of(st.integers(-(2**31), -1), st.integers(1 << 20, 2**31 - 1))


@pytest.fixture(scope="module")
def small(model: LoadedModel, make_backend: Callable[..., CpuBackend]) -> Executable:
    return bind(make_backend(2), model)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(MUTATIONS)), value=OUTSIDE)
def test_steps_that_point_outside_are_refused(small: Executable, name: str, value: int) -> None:
    good = Sequences(4, MAX_LEN).batch([Part(0, 0, PROMPT[:20]), Part(1, 0, PROMPT[:5])])
    with pytest.raises(ValueError, match=r"\w"):
        small.run(MUTATIONS[name](good, value))
    small.run(good)


def test_steps_beyond_the_capacities_are_refused(small: Executable) -> None:
    sequences = Sequences(5, 1024)
    with pytest.raises(ValueError, match="641 tokens"):
        small.run(sequences.batch([Part(0, 0, [1] * 641)]))
    with pytest.raises(ValueError, match="5 requests"):
        small.run(sequences.batch([Part(i, 0, [1]) for i in range(5)]))


def test_serving_imports_no_torch() -> None:
    code = (
        "import sys, hasten.core.loading, hasten.core.runner\n"
        "from hasten.kernels.backend import get_backend\n"
        "get_backend('cpu')\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
