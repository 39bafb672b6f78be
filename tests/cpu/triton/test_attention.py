"""The work list covers everything once; splits change no bit; an fp8 cache reads as it should."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan
from hasten.kernels.conformance.cases import OUT, Recorder
from hasten.kernels.conformance.cutting import BLOCK_SIZE, BatchMaker, Part, Schedule
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, KVGroupSpec, KVLayer
from hasten.kernels.reference import ReferenceBackend
from hasten.kernels.triton import attention_plan
from hasten.kernels.triton.attention_plan import Geometry, plan_attention
from hasten.kernels.triton.backend import TritonBackend

F32 = npt.NDArray[np.float32]
HEAD_SIZE = 16


def make_recorder(
    lengths: tuple[int, ...],
    kv_dtype: DType,
    heads: tuple[int, int],
    *,
    window: int | None = None,
    is_static: bool = False,
    is_rich: bool = False,
) -> Recorder:
    """A program of rotation and attention over random rows; `is_rich` adds norms, cap and sinks."""
    num_heads, num_kv_heads = heads
    spec = KVGroupSpec(1, num_kv_heads, HEAD_SIZE, kv_dtype, window)
    recorder = Recorder(DType.BF16, lengths, (spec,))
    qkv, _ = recorder.operand("qkv", (num_heads + 2 * num_kv_heads) * HEAD_SIZE, spread=1.5)
    rope = ops.Rope(tuple(1e4 ** (-i / 8) for i in range(HEAD_SIZE // 2)))
    kv_scales = (0.02, 0.03) if is_static else None
    norm = sinks = None
    if is_rich:
        norm = recorder.weight("norm", recorder.rng.uniform(0.5, 2.0, HEAD_SIZE))
        sinks = recorder.weight("sinks", recorder.rng.standard_normal(num_heads))
    sizes = (num_heads, num_kv_heads, HEAD_SIZE)
    recorder.program.add(
        ops.RopeStoreKV(qkv, KVLayer(0, 0), *sizes, rope, norm, norm, kv_scales=kv_scales)
    )
    out = recorder.buffer(OUT, num_heads * HEAD_SIZE)
    op = ops.PagedAttention(
        qkv, out, KVLayer(0, 0), *sizes, 0.25, window, 5.0 if is_rich else None, sinks
    )
    recorder.program.add(op)
    recorder.program.tap(OUT, out)
    return recorder


def run(
    backend: TritonBackend | ReferenceBackend,
    recorder: Recorder,
    schedule: Schedule,
    *,
    is_poisoned: bool = False,
) -> F32:
    """The rows of all steps, in the workload's order; the cache may hold NaN at first."""
    groups = recorder.program.kv_groups
    maker = BatchMaker(recorder.lengths, groups)
    cache = backend.allocate_kv(KVPlan(groups, (maker.num_blocks,) * len(groups), BLOCK_SIZE))
    most_tokens = max(sum(recorder.lengths), maker.max_len)
    capacity = Capacity(most_tokens, len(recorder.lengths), 1, maker.max_len)
    executable = backend.compile(recorder.program, recorder.weights, cache, capacity)
    result = np.full((sum(recorder.lengths), recorder.program.taps[OUT].width), np.nan, np.float32)
    if is_poisoned:
        for request in range(len(recorder.lengths)):
            executable.run(maker.poison(request, sum(recorder.lengths)))
        executable.run(maker.poison_null_block(sum(recorder.lengths)))
    for parts in schedule:
        executable.run(maker.batch(parts))
        result[maker.rows(parts)] = executable.tap(OUT)
    return result


def whole_and_last(lengths: tuple[int, ...]) -> tuple[Schedule, Schedule]:
    """All at once; and all but the last token of each request, then those alone."""
    whole = [Part(i, 0, length) for i, length in enumerate(lengths)]
    heads = [Part(i, 0, length - 1) for i, length in enumerate(lengths)]
    return [whole], [heads, [Part(i, length - 1, length) for i, length in enumerate(lengths)]]


@pytest.mark.parametrize("window", [None, 70])
def test_splits_of_a_long_context_change_no_bit(
    backend: TritonBackend, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """Decoding over several splits, merged, gives what one program gives for the whole prompt."""
    monkeypatch.setattr(attention_plan, "SPLIT_LEN", 64)
    monkeypatch.setattr("hasten.kernels.triton.paged_attention.SPLIT_LEN", 64)
    monkeypatch.setattr(backend, "_num_programs", 64)
    lengths = (150, 65)
    recorder = make_recorder(lengths, DType.BF16, (2, 1), window=window)
    together, apart = whole_and_last(lengths)
    assert np.array_equal(run(backend, recorder, together), run(backend, recorder, apart))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN
@pytest.mark.parametrize("kv_dtype", [DType.BF16, DType.FP8_E4M3])
def test_norms_cap_sinks_and_window_read_nothing_beyond(
    backend: TritonBackend, kv_dtype: DType
) -> None:
    lengths = (21, 5)
    recorder = make_recorder(lengths, kv_dtype, (3, 1), window=9, is_rich=True)
    together, apart = whole_and_last(lengths)
    result = run(backend, recorder, together)
    wanted = run(ReferenceBackend(), recorder, together)
    assert np.abs(result - wanted).max() <= 2.0**-6 * np.abs(wanted).max()
    assert np.array_equal(run(backend, recorder, apart, is_poisoned=True), result)


@pytest.mark.parametrize("static", [False, True])
def test_an_fp8_cache_reads_as_in_the_reference(backend: TritonBackend, static: bool) -> None:
    lengths = (37, 5)
    recorder = make_recorder(lengths, DType.FP8_E4M3, (4, 2), is_static=static)
    together, apart = whole_and_last(lengths)
    result = run(backend, recorder, together)
    wanted = run(ReferenceBackend(), recorder, together)
    assert np.abs(result - wanted).max() <= 2.0**-6 * np.abs(wanted).max()
    assert np.array_equal(run(backend, recorder, apart), result)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("num_programs", [1, 1000])
def test_the_work_list_covers_every_query_once(window: int | None, num_programs: int) -> None:
    rng = np.random.default_rng(6)
    lengths = (1500, 1, 700, 64)
    maker = BatchMaker(lengths, ())
    starts = [int(rng.integers(0, length)) for length in lengths]
    parts = [
        Part(i, start, length)
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True))
    ]
    batch = maker.batch(parts)
    geometry = Geometry(0, 2, 3, window)
    work = plan_attention(batch, geometry, num_programs)
    covered = np.zeros(batch.num_tokens, dtype=np.int64)
    for token, num_tokens, _, first, low, high, partial, _ in work.items.tolist():
        lowest = 0 if window is None else max(0, first - window + 1)
        assert lowest // attention_plan.SPLIT_LEN <= low < high
        assert (high - 1) * attention_plan.SPLIT_LEN < first + num_tokens
        if partial < 0:
            covered[token : token + num_tokens] += 1
    for token, num_tokens, first_row, num_splits in work.merges.tolist():
        own = work.items[(work.items[:, 0] == token) & (work.items[:, 6] >= 0)]
        rows = first_row + np.arange(num_splits) * num_tokens * geometry.group_size
        assert sorted(own[:, 6].tolist()) == rows.tolist()
        covered[token : token + num_tokens] += 1
    assert covered.tolist() == [1] * batch.num_tokens
    assert (len(work.merges) > 0) == (num_programs > 1)
