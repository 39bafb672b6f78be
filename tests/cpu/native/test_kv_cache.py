"""KV caches of every dtype and block size: the same bits in any blocks, threads and chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.loading import LoadedModel
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.backend import KVPlan
from hasten.kernels.cpu import CpuBackend
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, KVGroupSpec

from tests.helpers.random_models import random_model, tiny_config

F32 = npt.NDArray[np.float32]
VOCAB = 96
HUGE_PAGE = 2 << 20
PROMPT = np.random.default_rng(10).integers(0, VOCAB, 283).astype(np.int32)
"""Longer than an attention split, and no multiple of anything."""


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return random_model(tiny_config(VOCAB, windows=(None, 40)))


def residuals(
    backend: CpuBackend, model: LoadedModel, dtypes: tuple[DType, DType], block_size: int, cut: int
) -> F32:
    """The last layer's output for every token of the prompt, computed `cut` tokens at a time."""
    program = model.build_program(*dtypes)
    program.ops = list(program.split()[0])
    program.tap("out", next(buffer for buffer in program.buffers if buffer.name == "delta"))
    num_blocks = len(PROMPT) // block_size + 2
    layout = PromptLayout(program.kv_groups, 1, len(PROMPT), block_size)
    plan = KVPlan(program.kv_groups, (num_blocks,) * len(program.kv_groups), block_size)
    capacity = Capacity(len(PROMPT), 1, 1, len(PROMPT))
    executable = backend.compile(program, model.weights, backend.allocate_kv(plan), capacity)
    found = []
    for start in range(0, len(PROMPT), cut):
        executable.run(layout.batch([PromptChunk(PROMPT[start : start + cut], start)]))
        found.append(executable.tap("out").copy())
    return np.concatenate(found)


@pytest.mark.parametrize("kv_dtype", [DType.FP8_E4M3, DType.BF16, DType.F32])
def test_bits_do_not_depend_on_blocks_threads_or_chunks(
    isa: str, model: LoadedModel, kv_dtype: DType
) -> None:
    dtypes = (DType.F32 if kv_dtype is DType.F32 else DType.BF16, kv_dtype)
    whole = residuals(CpuBackend(1, isa=isa), model, dtypes, 16, len(PROMPT))
    assert np.isfinite(whole).all()
    for threads, block_size, cut in ((2, 8, len(PROMPT)), (3, 8, 7), (2, 16, 1), (1, 64, 31)):
        got = residuals(CpuBackend(threads, isa=isa), model, dtypes, block_size, cut)
        said = f"{threads} threads, blocks of {block_size}, chunks of {cut}"
        np.testing.assert_array_equal(got, whole, err_msg=said)


def test_instruction_sets_agree_on_an_fp8_cache(isa: str, model: LoadedModel) -> None:
    """A float32 program multiplies the codes in float32, so that only the order of sums differs."""
    dtypes = (DType.F32, DType.FP8_E4M3)
    portable = residuals(CpuBackend(1, isa="portable"), model, dtypes, 16, len(PROMPT))
    own = residuals(CpuBackend(1, isa=isa), model, dtypes, 16, len(PROMPT))
    # Where a number lies between two codes, the last bit of a sum decides.
    assert np.median(np.abs(own - portable)) < 1e-5
    assert np.abs(own - portable).max() < 0.1 * np.abs(portable).max()


def test_a_token_takes_little_more_than_half_of_bf16() -> None:
    backend = CpuBackend(1, isa="portable")
    for head_size in (64, 128):
        sizes = [
            backend.kv_block_bytes(KVGroupSpec(30, 3, head_size, dtype), 16)
            for dtype in (DType.FP8_E4M3, DType.BF16)
        ]
        assert sizes[0] == 16 * 30 * 3 * 2 * (head_size + 2)
        assert sizes[0] / sizes[1] <= 0.52


def test_a_cache_takes_memory_as_it_is_filled(isa: str) -> None:
    """Not a huge page for each layer: their blocks lie side by side, in runs of 256 tokens."""
    model = random_model(tiny_config(VOCAB, windows=(None,) * 24))
    program = model.build_program(DType.BF16, DType.BF16)
    backend = CpuBackend(1, isa=isa)
    cache = backend.allocate_kv(KVPlan(program.kv_groups, (4096,), 16))
    before = resident_bytes(cache.data[0])
    if before is None:
        pytest.skip("no /proc/self/smaps")
    capacity = Capacity(len(PROMPT), 1, 1, len(PROMPT))
    executable = backend.compile(program, model.weights, cache, capacity)
    layout = PromptLayout(program.kv_groups, 1, len(PROMPT), 16)
    executable.run(layout.batch([PromptChunk(PROMPT, 0)]))
    after = resident_bytes(cache.data[0])
    run_bytes = backend.kv_block_bytes(program.kv_groups[0], 16) * 16
    num_runs = len(PROMPT) // 256 + 1
    assert after is not None
    assert 0 < after - before <= num_runs * run_bytes + HUGE_PAGE


def resident_bytes(array: npt.NDArray[np.uint8]) -> int | None:
    """Of the mapping that an array begins in (proc(5)); None where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return None
    is_here = False
    for line in lines:
        head, _, rest = line.partition(" ")
        first, is_range, last = head.partition("-")
        if is_range:
            is_here = int(first, 16) <= array.ctypes.data < int(last, 16)
        elif is_here and head == "Rss:":
            return int(rest.split()[0]) << 10
    return None


@pytest.mark.parametrize("block_size", [4, 12, 24])
def test_other_block_sizes_are_refused(block_size: int) -> None:
    with pytest.raises(ValueError, match=str(block_size)):
        CpuBackend(1).kv_block_bytes(KVGroupSpec(1, 1, 16, DType.BF16), block_size)
