"""Damaged steps: any array of any length with any numbers is computed or refused, never followed.

Memory that a refused step would have touched is only seen by `make sanitize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels.backend import Executable, KVPlan
from hasten.kernels.cpu import CpuBackend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.step import SamplingRows, SparseRows, StepBatch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.flat_steps import Part, Sequences, greedy_rows
from tests.helpers.random_models import random_model, tiny_config

if TYPE_CHECKING:
    from hasten.kernels.cpu import _native

VOCAB = 96
MAX_LEN = 64
NUM_SEQUENCES = 3
Array = npt.NDArray[Any]


@pytest.fixture(scope="module", params=[DType.BF16, DType.FP8_E4M3])
def executable(
    request: pytest.FixtureRequest, make_backend: Callable[..., CpuBackend]
) -> Executable:
    model = random_model(tiny_config(VOCAB, windows=(None, 20)))
    program = model.build_program(DType.BF16, request.param)
    blocks = Sequences(NUM_SEQUENCES, MAX_LEN).num_blocks
    plan = KVPlan(program.kv_groups, (blocks,) * len(program.kv_groups), 16)
    backend = make_backend(2)
    capacity = Capacity(MAX_LEN, NUM_SEQUENCES, 8, MAX_LEN)
    return backend.compile(program, model.weights, backend.allocate_kv(plan), capacity)


def good_step() -> StepBatch:
    """Two requests, one row with every kind of adjustment, one that samples freely."""
    parts = [Part(0, 5, range(1, 20)), Part(2, 0, range(30, 37))]
    batch = Sequences(NUM_SEQUENCES, MAX_LEN, num_groups=2).batch(parts)
    sampling = replace(
        greedy_rows(2, num_logprobs=3),
        temperature=np.array([0.7, 1.0], np.float32),
        top_k=np.array([9, 0], np.int32),
        top_p=np.array([0.9, 1.0], np.float32),
        min_p=np.array([0.01, 0.0], np.float32),
        counts=sparse([0, 2, 2], [4, 8], [1.0, 0.0]),
        bias=sparse([0, 0, 3], [1, 2, 3], [0.5, -0.5, -np.inf]),
        mask_idx=np.array([0, -1], np.int32),
        masks=np.full((1, 3), 0xFFFF0FF0, np.uint32),
    )
    return replace(batch, sampling=sampling)


def sparse(starts: list[int], token_ids: list[int], values: list[float]) -> SparseRows:
    return SparseRows(
        np.array(starts, np.int32), np.array(token_ids, np.int32), np.array(values, np.float32)
    )


def arrays_of(step: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Array]:
    """Every array of a step, by the fields that lead to it."""
    found: dict[tuple[str | int, ...], Array] = {}
    for field in fields(step):
        value = getattr(step, field.name)
        here = (*path, field.name)
        if isinstance(value, np.ndarray):
            found[here] = value
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                found |= arrays_of(item, (*here, index))
        elif isinstance(value, SamplingRows | SparseRows):
            found |= arrays_of(value, here)
    return found


def damaged(step: Any, path: tuple[str | int, ...], array: Array) -> Any:
    """The step with one array replaced."""
    name, *rest = path
    value = getattr(step, str(name))
    if not rest:
        return replace(step, **{str(name): array})
    if isinstance(rest[0], int):
        items = list(value)
        items[rest[0]] = damaged(items[rest[0]], tuple(rest[1:]), array)
        return replace(step, **{str(name): tuple(items)})
    return replace(step, **{str(name): damaged(value, tuple(rest), array)})


PATHS = sorted(arrays_of(good_step()), key=str)
NUMBERS = st.one_of(st.integers(-3, 40), st.integers(-(2**31), 2**31 - 1))
CHANGES = st.tuples(
    st.sampled_from(PATHS),
    st.sampled_from(("shorter", "longer", "wider", "numbers", "numbers", "numbers")),
    st.lists(st.tuples(st.integers(0, 10_000), NUMBERS), min_size=1, max_size=4),
)


def change(array: Array, kind: str, numbers: list[tuple[int, int]]) -> Array:
    if kind == "shorter":
        return array[:-1].copy()
    if kind == "longer":
        return (
            np.concatenate([array, array[-1:]])
            if len(array)
            else np.zeros_like(array, shape=(1, 2))
        )
    if kind == "wider":
        return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    changed = array.copy()
    flat = changed.reshape(-1)
    for place, number in numbers[: flat.size]:
        # Their bits: floats become NaN and infinity too.
        bits = np.array(number, np.int64).astype(f"i{flat.itemsize}")
        flat[place % flat.size] = bits.view(flat.dtype)
    return changed


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_damaged_steps_are_computed_or_refused(
    executable: Executable, changes: list[tuple[tuple[str | int, ...], str, Any]]
) -> None:
    step = good_step()
    for path, kind, numbers in changes:
        step = damaged(step, path, change(arrays_of(step)[path], kind, numbers))
    try:
        token_ids = executable.run(step).token_ids.copy()
    except (ValueError, TypeError, FloatingPointError):
        return
    assert ((token_ids >= 0) & (token_ids < VOCAB)).all()


def test_forbidding_every_token_is_an_error(executable: Executable) -> None:
    step = good_step()
    nothing = replace(step.sampling, masks=np.zeros((1, 3), np.uint32))
    with pytest.raises(FloatingPointError, match="forbid every token"):
        executable.run(replace(step, sampling=nothing))


def test_the_good_step_is_computed(executable: Executable) -> None:
    result = executable.run(good_step())
    assert np.isfinite(result.logprobs).all()


def new_program(backend: CpuBackend) -> _native.Program:
    program: _native.Program = backend._native.Program(
        backend.isa, backend._native.Team(1), 8, 2, 4, 16, 10, [], []
    )
    return program


PLAIN, INT8 = 1, 2
NARROW, WIDE, LAID_OUT = 0, 1, 2
"""Buffers of 32, 64 and 64 columns; the last has rows for integer weights alone."""

BAD_OPS: dict[str, Callable[[_native.Program], None]] = {
    "no plain rows": lambda p: p.form(LAID_OUT, WIDE, PLAIN),
    "widths differ": lambda p: p.gather_rows(WIDE, NARROW, PLAIN),
    "no room": lambda p: p.gather_rows(WIDE, WIDE, INT8),
    "halves": lambda p: p.act_mul(WIDE, 1, WIDE, PLAIN),
    "columns": lambda p: p.norm_columns(NARROW, 1, np.ones(32, np.float32), 1e-5),
    "no such buffer": lambda p: p.add_scaled(NARROW, 77, 1.0),
    "experts": lambda p: p.route(NARROW, 33, False, WIDE),
    "vocabulary": lambda p: p.sample(WIDE),
    "no KV group": lambda p: p.paged_attention(
        WIDE, 0, 0, 1, 1, 16, 1.0, 0, 0.0, None, False, WIDE, PLAIN
    ),
}


@pytest.mark.parametrize("name", BAD_OPS)
def test_ops_that_do_not_fit_are_refused(
    name: str, make_backend: Callable[..., CpuBackend]
) -> None:
    backend = make_backend(1)
    program = new_program(backend)
    for width, forms in ((32, PLAIN), (64, PLAIN), (64, INT8)):
        program.add_buffer(width, False, forms)
    with pytest.raises((ValueError, IndexError)):
        BAD_OPS[name](program)
