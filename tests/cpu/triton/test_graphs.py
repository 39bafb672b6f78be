"""Graphs: when they are captured, and that what they replay is the step that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels.backend import KVPlan
from hasten.kernels.conformance.cases import OUT
from hasten.kernels.conformance.cutting import BLOCK_SIZE, BatchMaker, Part, Schedule
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity
from hasten.kernels.triton import attention_plan
from hasten.kernels.triton.backend import TritonBackend
from hasten.kernels.triton.binding import Binder
from hasten.kernels.triton.executable import TritonExecutable
from hasten.kernels.triton.graphs import GRAPH_ROWS, NODE_BYTES, padded_rows
from hasten.kernels.triton.kv_cache import TritonKVCache
from hasten.kernels.triton.machine import HostMachine

from tests.cpu.triton.test_attention import make_recorder
from tests.helpers.recording_machine import RecordingMachine

F32 = npt.NDArray[np.float32]
LENGTHS = (40, 13, 7)


def backend_of(machine: RecordingMachine, *, enforce_eager: bool = False) -> TritonBackend:
    return TritonBackend(
        "cpu", launcher=machine.launch, machine=machine, enforce_eager=enforce_eager
    )


def steps() -> Schedule:
    """Prompts, then decoding with ever fewer requests, so that sizes come again and shrink."""
    prompts = [[Part(0, 0, 31)], [Part(1, 0, 6), Part(2, 0, 3)]]
    decoding = [
        [
            Part(request, first + step, first + step + 1)
            for request, first in enumerate((31, 6, 3))
            if first + step < LENGTHS[request]
        ]
        for step in range(9)
    ]
    return [*prompts, *decoding]


def compiled(
    machine: RecordingMachine, *, enforce_eager: bool
) -> tuple[TritonExecutable, BatchMaker]:
    """Attention alone, and what makes its batches."""
    backend = backend_of(machine, enforce_eager=enforce_eager)
    recorder = make_recorder(LENGTHS, DType.BF16, (4, 2))
    groups = recorder.program.kv_groups
    maker = BatchMaker(LENGTHS, groups)
    cache = backend.allocate_kv(KVPlan(groups, (maker.num_blocks,), BLOCK_SIZE))
    capacity = Capacity(64, len(LENGTHS), 1, maker.max_len)
    return backend.compile(recorder.program, recorder.weights, cache, capacity), maker


def run(machine: RecordingMachine, *, enforce_eager: bool) -> Iterator[tuple[list[str], F32]]:
    """What each step did, and its rows."""
    executable, maker = compiled(machine, enforce_eager=enforce_eager)
    for parts in steps():
        executable.run(maker.batch(parts))
        yield machine.take_record(), executable.tap(OUT)


@pytest.mark.parametrize("split_len", [16, 512])
def test_a_replay_is_the_step_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, split_len: int
) -> None:
    """The same bits as launches give; short splits make merges come and go."""
    monkeypatch.setattr(attention_plan, "SPLIT_LEN", split_len)
    monkeypatch.setattr("hasten.kernels.triton.paged_attention.SPLIT_LEN", split_len)
    machine = RecordingMachine()
    eager = [rows for _, rows in run(RecordingMachine(), enforce_eager=True)]
    graphs = [rows for _, rows in run(machine, enforce_eager=False)]
    for one, other in zip(eager, graphs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert machine.num_captured >= 2


def test_a_size_is_captured_when_it_comes_again() -> None:
    first, again = ["settle", "upload", "launch"], ["settle", "upload", "capture", "replay"]
    happened = [what for what, _ in run(RecordingMachine(), enforce_eager=False)]
    replayed = ["settle", "upload", "replay"]
    # Prompts of 31 and 9 rows; then three requests decode four times, two three times, one twice.
    decoding = [first, again, replayed, replayed, first, again, replayed, first, again]
    assert happened == [first, first, *decoding]
    eager = [what for what, _ in islice(run(RecordingMachine(), enforce_eager=True), 4)]
    assert eager == [first] * 4


def test_a_profile_leaves_out_what_compiles_and_captures() -> None:
    backends = (
        backend_of(RecordingMachine()),
        backend_of(RecordingMachine(), enforce_eager=True),
        TritonBackend("meta"),
    )
    assert [backend.num_warm_up_runs for backend in backends] == [2, 0, 0]


def test_a_step_from_which_nothing_is_read_is_waited_for() -> None:
    machine = RecordingMachine()
    executable, maker = compiled(machine, enforce_eager=True)
    batch = maker.batch([Part(0, 0, 4)])
    executable.run(replace(batch, logit_rows=np.array([3], np.int32)))
    assert machine.num_finished == 0, "reading its token waits"
    executable.run(batch)
    assert machine.num_finished == 1


def test_sizes_are_padded() -> None:
    found = [padded_rows(num_rows, 2048) for num_rows in (0, 1, 3, 8, 9, 17, 65, 256, 257)]
    assert found == [None, 1, 4, 8, 16, 24, 96, 256, None]
    assert padded_rows(9, 12) is None, "more than the capacity"
    assert list(GRAPH_ROWS) == sorted(set(GRAPH_ROWS))


def test_what_is_one_per_token_is_padded() -> None:
    """And block tables, one row per request, are uploaded as they are."""
    backend = backend_of(RecordingMachine())
    recorder = make_recorder(LENGTHS, DType.BF16, (4, 2))
    cache = TritonKVCache(KVPlan(recorder.program.kv_groups, (9,), BLOCK_SIZE), backend.device)
    capacity = Capacity(64, 12, 1, 64)
    binder = Binder(
        recorder.weights,
        cache,
        capacity,
        backend.device,
        1,
        backend.table,
        has_fp8=True,
        num_programs=1,
    )
    batch = BatchMaker(LENGTHS, recorder.program.kv_groups).batch([Part(0, 0, 3)])
    tokens = binder.token_input("tokens", lambda _: np.full(3, 7, np.int32))
    tables = binder.step_input("tables", (12, 2), lambda _: np.full((3, 2), 7, np.int32))
    for step_input in (tokens, tables):
        step_input.data.fill_(5)
        step_input.refresh(batch, 8)
    assert tokens.data[:9].tolist() == [7, 7, 7, 0, 0, 0, 0, 0, 5]
    assert tables.data[:9, 0].tolist() == [7, 7, 7, 5, 5, 5, 5, 5, 5]


def test_memory_of_graphs_is_planned() -> None:
    program = make_recorder(LENGTHS, DType.BF16, (4, 2)).program
    body, _ = program.split()
    capacity = Capacity(8, 4, 1, 64)
    planned = backend_of(RecordingMachine()).graph_bytes(program, capacity)
    assert planned >= 4 * len(body) * NODE_BYTES
    assert backend_of(RecordingMachine(), enforce_eager=True).graph_bytes(program, capacity) == 0
    assert TritonBackend("cpu", machine=HostMachine()).graph_bytes(program, capacity) == 0


def test_memory_of_work_is_what_compiling_takes() -> None:
    recorder = make_recorder(LENGTHS, DType.BF16, (4, 2))
    backend = backend_of(RecordingMachine())
    capacity = Capacity(64, 3, 1, 64)
    planned = backend.bound_bytes(recorder.program, recorder.weights, capacity)
    buffers = sum(64 * buffer.width * 2 for buffer in recorder.program.buffers)
    assert planned.work > buffers
    groups = recorder.program.kv_groups
    cache = backend.allocate_kv(KVPlan(groups, (9,), BLOCK_SIZE))
    executable = backend.compile(recorder.program, recorder.weights, cache, capacity)
    assert executable.bound_bytes == planned
    assert backend.free_memory_bytes() is None, "this device's memory is the host's"
