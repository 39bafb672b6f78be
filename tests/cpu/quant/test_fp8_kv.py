"""The fp8 KV cache of every backend, against dense attention over rounded K and V."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Embed, PagedAttention, Rope, RopeStoreKV
from hasten.kernels.program import Capacity, KVGroupSpec, KVLayer, Program, Rows, WeightName
from hasten.kernels.weights import DenseWeight, F32Array

RNG = np.random.default_rng(6)
HEADS, KV_HEADS, SIZE = 6, 2, 32
WIDTH = (HEADS + 2 * KV_HEADS) * SIZE
NO_ROPE = Rope(inv_freq=(0.0,))
TABLE = WeightName("table")
Scales = tuple[float, float] | None


def attend(
    kernels: str, qkv: F32Array, cuts: list[int], dtype: DType, scales: Scales = None
) -> F32Array:
    """Attention over qkv [n, WIDTH], computed in chunks that end at `cuts`."""
    group = KVGroupSpec(1, KV_HEADS, SIZE, dtype)
    layout = PromptLayout((group,), num_requests=1, max_len=len(qkv))
    program = Program(len(qkv), (group,))
    rows = program.buffer("qkv", Rows.TOKENS, WIDTH, DType.F32)
    out = program.buffer("out", Rows.TOKENS, HEADS * SIZE, DType.F32)
    kv = KVLayer(0, 0)
    program.add(Embed(TABLE, rows))
    program.add(RopeStoreKV(rows, kv, HEADS, KV_HEADS, SIZE, NO_ROPE, kv_scales=scales))
    program.add(PagedAttention(rows, out, kv, HEADS, KV_HEADS, SIZE, scale=SIZE**-0.5))
    program.tap("out", out)
    backend = get_backend(kernels)
    cache = backend.allocate_kv(layout.kv_plan())
    capacity = Capacity(len(qkv), 1, 1, len(qkv))
    executable = backend.compile(program, {TABLE: DenseWeight(qkv)}, cache, capacity)
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(qkv)], strict=True):
        ids = np.arange(start, stop, dtype=np.int32)
        executable.run(layout.batch([PromptChunk(ids, start)]))
        parts.append(executable.tap("out").copy())
    return np.concatenate(parts)


def rounded(x: F32Array, static: float | None) -> npt.NDArray[np.float64]:
    """[n, heads, size] as the cache gives it back."""
    result = np.zeros(x.shape)
    for token in range(x.shape[0]):
        for head in range(x.shape[1]):
            row = x[token, head]
            scale = np.float32(np.abs(row).max() / np.float32(448)) if static is None else static
            stored = np.float32(ml_dtypes.bfloat16(scale)) or np.float32(1)
            codes = np.clip(row / stored, -448, 448).astype(ml_dtypes.float8_e4m3fn)
            result[token, head] = codes.astype(np.float64) * stored
    return result


def oracle(qkv: F32Array, scales: Scales) -> npt.NDArray[np.float64]:
    heads = qkv.reshape(len(qkv), -1, SIZE)
    k_scale, v_scale = (None, None) if scales is None else scales
    k = rounded(heads[:, HEADS : HEADS + KV_HEADS], k_scale)
    v = rounded(heads[:, HEADS + KV_HEADS :], v_scale)
    out = np.zeros((len(qkv), HEADS, SIZE))
    for token in range(len(qkv)):
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            scores = k[: token + 1, shared] @ heads[token, head].astype(np.float64) * SIZE**-0.5
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ v[: token + 1, shared] / weights.sum()
    return out.reshape(len(qkv), -1)


def tokens(num: int) -> F32Array:
    """q, k and v whose tokens and heads differ much in size; token 0 has zeros in its cache."""
    qkv = RNG.standard_normal((num, HEADS + 2 * KV_HEADS, SIZE)).astype(np.float32)
    qkv[:, HEADS:] *= np.exp(RNG.standard_normal((num, 2 * KV_HEADS, 1)) * 2).astype(np.float32)
    qkv[0, HEADS:] = 0
    return qkv.reshape(num, -1)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 83])
@pytest.mark.parametrize("scales", [None, (0.02, 0.3)])
def test_attention_reads_what_was_rounded(kernels: str, num_tokens: int, scales: Scales) -> None:
    qkv = tokens(num_tokens)
    got = attend(kernels, qkv, [], DType.FP8_E4M3, scales)
    np.testing.assert_allclose(got, oracle(qkv, scales), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("cuts", [[1], [7, 14, 21], [64], list(range(1, 83))])
def test_bits_do_not_depend_on_how_the_prompt_is_cut(kernels: str, cuts: list[int]) -> None:
    qkv = tokens(83)
    whole = attend(kernels, qkv, [], DType.FP8_E4M3)
    np.testing.assert_array_equal(attend(kernels, qkv, cuts, DType.FP8_E4M3), whole)


def test_numbers_beyond_a_static_range_are_clamped(kernels: str) -> None:
    qkv = tokens(20)
    heads = qkv.reshape(20, -1, SIZE)
    heads[3, HEADS + KV_HEADS :] = 1e6
    got = attend(kernels, qkv, [], DType.FP8_E4M3, (0.5, 0.25))
    assert np.abs(got).max() <= 448 * 0.25 + 1e-3


def test_a_token_takes_little_more_than_half_of_bf16() -> None:
    backend = get_backend("reference")
    for head_size in (64, 128):
        sizes = [
            backend.kv_block_bytes(KVGroupSpec(30, 3, head_size, dtype), 16)
            for dtype in (DType.FP8_E4M3, DType.BF16)
        ]
        assert sizes[0] == 16 * 30 * 3 * 2 * (head_size + 2)
        assert sizes[0] / sizes[1] <= 0.52


def test_what_is_counted_is_what_is_allocated() -> None:
    group = KVGroupSpec(3, KV_HEADS, SIZE, DType.FP8_E4M3)
    backend = get_backend("reference")
    plan = PromptLayout((group,), 2, 100).kv_plan()
    blocks = backend.kv_block_bytes(group, plan.block_size) * plan.num_blocks[0]
    one_slot = backend.kv_block_bytes(group, 1)
    assert backend.allocate_kv(plan).num_bytes == blocks + one_slot
