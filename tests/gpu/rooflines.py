"""Each op's time against its roofline and against torch's own kernels.

    roofline = the larger of  bytes moved / bytes per second of a copy
                              arithmetic / arithmetic per second of a large product

Peaks are measured, not looked up. Ops are repeated over operands that together exceed the device's
cache, and timed as graphs, so neither the cache nor the host helps or hinders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from hasten.kernels import ops
from hasten.kernels.backend import KVPlan
from hasten.kernels.conformance.cutting import BLOCK_SIZE, BatchMaker, Part
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, KVGroupSpec, KVLayer, Program, Rows, WeightName
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.weights import DenseWeight, Weight

from tests.gpu.models import LLAMA_8B, TINY, device_bytes, random_matrix
from tests.gpu.setting import Row, Setting

if TYPE_CHECKING:
    from hasten.core.models import DecoderConfig
    from hasten.kernels.step import StepBatch
    from hasten.kernels.triton.executable import TritonExecutable

CACHE_BYTES = 200 << 20
"""More than any device's cache: operands of so many bytes are used in turn."""
MAX_COPIES = 12
MAX_ROWS = 2048
NUM_REPEATS = 10
BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this device does at best, as measured."""

    bytes_per_s: float
    bf16_per_s: float
    fp8_per_s: float

    @classmethod
    def measure(cls, setting: Setting) -> Peaks:
        size, side = (1 << 20, 128) if setting.is_tiny else (1 << 30, 8192)
        source = torch.zeros(size, dtype=torch.uint8, device=setting.device)
        target = torch.empty_like(source)
        copy_s = setting.seconds(lambda: target.copy_(source))
        a, b = (torch.randn(side, side, device=setting.device).to(BF16) for _ in range(2))
        bf16_s = setting.seconds(lambda: a @ b)
        fp8 = _scaled_mm(torch.randn(side, side), torch.randn(side, side), setting.device)
        fp8_s = _seconds_or_none(setting, fp8)
        products = 2.0 * side**3
        return cls(2 * size / copy_s, products / bf16_s, products / (fp8_s or bf16_s))

    def roofline_s(self, num_bytes: float, arithmetic: float, *, is_fp8: bool = False) -> float:
        per_s = self.fp8_per_s if is_fp8 else self.bf16_per_s
        return max(num_bytes / self.bytes_per_s, arithmetic / per_s)


def check_peaks(setting: Setting) -> Iterator[Row]:
    peaks = Peaks.measure(setting)
    yield {
        "copy GB/s": round(peaks.bytes_per_s / 1e9, 1),
        "bf16 TFLOP/s": round(peaks.bf16_per_s / 1e12, 1),
        "fp8 TFLOP/s": round(peaks.fp8_per_s / 1e12, 1),
        "ok": True,
    }


# --- products -----------------------------------------------------------------------------------


def check_products(setting: Setting, scheme: str) -> Iterator[Row]:
    """The products of one layer of Llama-3-8B at several numbers of rows."""
    peaks = Peaks.measure(setting)
    config = TINY if setting.is_tiny else LLAMA_8B
    shapes = {
        "qkv": (config.qkv_width, config.hidden_size),
        "o": (config.hidden_size, config.q_width),
        "gate_up": (2 * config.intermediate_size, config.hidden_size),
        "down": (config.hidden_size, config.intermediate_size),
    }
    for name, (out, width) in shapes.items():
        product = _Products.make(setting, scheme, out, width)
        for num_rows in (1,) if setting.is_tiny else (1, 8, 16, 64, 128, 512, MAX_ROWS):
            seconds = product.seconds(setting, num_rows)
            own_s, note = _torch_product_s(setting, scheme, (num_rows, out, width))
            moved = product.weight_bytes + 2 * num_rows * (out + width)
            roofline_s = peaks.roofline_s(
                moved, 2 * num_rows * out * width, is_fp8=scheme.startswith("fp8")
            )
            yield _speed_row(f"linear {scheme} {name}", num_rows, seconds, roofline_s, own_s, note)


@dataclass(frozen=True, slots=True)
class _Products:
    """One product several times, each with weights of its own."""

    executable: TritonExecutable
    num_copies: int
    weight_bytes: int

    @classmethod
    def make(cls, setting: Setting, scheme: str, out: int, width: int) -> _Products:
        weight = random_matrix(np.random.default_rng(1), (out, width), scheme)
        weight_bytes = device_bytes(weight)
        num_copies = 2 if setting.is_tiny else min(MAX_COPIES, 1 + CACHE_BYTES // weight_bytes)
        program = Program(1, ())
        x = program.input("x", width, DType.BF16)
        result = program.buffer("out", Rows.TOKENS, out, DType.BF16)
        weights: dict[WeightName, Weight] = {}
        for i in range(num_copies):
            weights[WeightName(f"weight{i}")] = weight
            program.add(ops.Linear(x, WeightName(f"weight{i}"), result))
        executable = _compile(setting, program, weights, MAX_ROWS)
        rng = np.random.default_rng(2)
        executable.set_input("x", rng.standard_normal((MAX_ROWS, width), np.float32))
        return cls(executable, num_copies, weight_bytes)

    def seconds(self, setting: Setting, num_rows: int) -> float:
        return setting.seconds(partial(self.executable.run_body, num_rows), self.num_copies)


def _torch_product_s(
    setting: Setting, scheme: str, sizes: tuple[int, int, int]
) -> tuple[float | None, str]:
    """bf16 `linear`; for fp8 `scaled_mm` with a scale per row, quantising not counted."""
    num_rows, out, width = sizes
    num_copies = 2 if setting.is_tiny else min(MAX_COPIES, 1 + CACHE_BYTES // (2 * out * width))
    x = torch.randn(num_rows, width, device=setting.device).to(BF16)
    if scheme.startswith("fp8"):
        calls = [
            _scaled_mm(x.float(), torch.randn(width, out, device=setting.device), setting.device)
            for _ in range(num_copies)
        ]
        return _seconds_or_none(
            setting, lambda: [call() for call in calls], num_copies
        ), "scaled_mm"
    weights = [torch.randn(out, width, device=setting.device).to(BF16) for _ in range(num_copies)]
    linear = torch.nn.functional.linear
    return setting.seconds(lambda: [linear(x, w) for w in weights], num_copies), "bf16 linear"


def _scaled_mm(a: torch.Tensor, b: torch.Tensor, device: str) -> Callable[[], object]:
    """a @ b in e4m3, with a scale for each row of `a` and column of `b`."""
    left = a.to(device).to(torch.float8_e4m3fn)
    right = b.to(device).t().contiguous().to(torch.float8_e4m3fn).t()
    row_scale = torch.ones(left.shape[0], 1, device=device)
    column_scale = torch.ones(1, right.shape[1], device=device)
    return lambda: torch._scaled_mm(
        left, right, scale_a=row_scale, scale_b=column_scale, out_dtype=BF16
    )


def _seconds_or_none(
    setting: Setting, work: Callable[[], object], num_calls: int = 1
) -> float | None:
    """None where torch has no such kernel here."""
    try:
        return setting.seconds(work, num_calls)
    except (RuntimeError, ValueError, NotImplementedError):
        return None


# --- attention ----------------------------------------------------------------------------------


def check_attention(setting: Setting, kv_dtype: DType) -> Iterator[Row]:
    """Decoding at several batches and contexts, and a prompt."""
    peaks = Peaks.measure(setting)
    cases = (((1, 1024), 1), ((8, 1024), 1), ((64, 1024), 1), ((1, 8192), 1), ((1, 2048), 2048))
    for (batch, context), query_len in (((2, 24), 1),) if setting.is_tiny else cases:
        layers = _AttentionLayers.make(setting, kv_dtype, batch, context, query_len)
        seconds = layers.seconds(setting)
        own_s = _sdpa_s(setting, batch, context, query_len)
        roofline_s = peaks.roofline_s(layers.num_bytes, layers.arithmetic)
        kind = "decode" if query_len == 1 else "prompt"
        name = f"attention {kind} {kv_dtype} cache, {context} positions"
        yield _speed_row(name, batch * query_len, seconds, roofline_s, own_s, "bf16 SDPA")


@dataclass(frozen=True, slots=True)
class _AttentionLayers:
    """The attention of several layers, each with a cache of its own."""

    executable: TritonExecutable
    num_rows: int
    num_layers: int
    num_bytes: float
    arithmetic: float

    @classmethod
    def make(
        cls, setting: Setting, kv_dtype: DType, batch: int, context: int, query_len: int
    ) -> _AttentionLayers:
        config = TINY if setting.is_tiny else LLAMA_8B
        sizes = config.num_heads, config.num_kv_heads, config.head_size
        held_bytes = batch * context * 2 * config.kv_width * kv_dtype.itemsize
        num_layers = 2 if setting.is_tiny else min(MAX_COPIES, 1 + CACHE_BYTES // held_bytes)
        spec = KVGroupSpec(num_layers, config.num_kv_heads, config.head_size, kv_dtype)
        program = Program(1, (spec,))
        qkv = program.buffer("qkv", Rows.TOKENS, config.qkv_width, DType.BF16)
        out = program.buffer("out", Rows.TOKENS, config.q_width, DType.BF16)
        for layer in range(num_layers):
            scale = config.head_size**-0.5
            program.add(ops.PagedAttention(qkv, out, KVLayer(0, layer), *sizes, scale))
        maker = BatchMaker((context,) * batch, (spec,))
        backend = setting.backend(enforce_eager=True)
        cache = backend.allocate_kv(KVPlan((spec,), (maker.num_blocks,), BLOCK_SIZE))
        num_rows = batch * query_len
        executable = backend.compile(
            program, {}, cache, Capacity(num_rows, batch, 1, maker.max_len)
        )
        executable.run(maker.batch([Part(i, context - query_len, context) for i in range(batch)]))
        pairs = batch * (query_len * context - query_len * (query_len - 1) / 2)
        return cls(
            executable,
            num_rows,
            num_layers,
            held_bytes + 4 * num_rows * config.q_width,
            4 * pairs * config.q_width,
        )

    def seconds(self, setting: Setting) -> float:
        work = partial(self.executable.run_body, self.num_rows)
        return setting.seconds(work, self.num_layers)


def _sdpa_s(setting: Setting, batch: int, context: int, query_len: int) -> float | None:
    """Over contiguous bf16 keys and values, which no server has."""
    config = TINY if setting.is_tiny else LLAMA_8B

    def draw(num_heads: int, length: int) -> torch.Tensor:
        shape = batch, num_heads, length, config.head_size
        return torch.randn(shape, device=setting.device).to(BF16)

    held_bytes = batch * context * 4 * config.kv_width
    num_copies = 2 if setting.is_tiny else min(MAX_COPIES, 1 + CACHE_BYTES // held_bytes)
    query = draw(config.num_heads, query_len)
    caches = [[draw(config.num_kv_heads, context) for _ in range(2)] for _ in range(num_copies)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return _seconds_or_none(
        setting,
        lambda: [
            attend(query, keys, values, is_causal=query_len > 1, enable_gqa=True)
            for keys, values in caches
        ],
        num_copies,
    )


# --- the other ops ------------------------------------------------------------------------------


def check_others(setting: Setting) -> Iterator[Row]:
    """Ops that move rows, at a decoding and at a prompt's number of them; and sampling."""
    peaks = Peaks.measure(setting)
    config = TINY if setting.is_tiny else LLAMA_8B
    for num_rows in (3,) if setting.is_tiny else (64, MAX_ROWS):
        for name, program, weights, num_bytes in _row_ops(config, num_rows):
            executable = _compile(setting, program, weights, num_rows)
            executable.run(_rows_batch(num_rows, program))
            num_calls = 1 if setting.is_tiny else NUM_REPEATS
            work = partial(_repeat, executable, num_rows, num_calls)
            seconds = setting.seconds(work, num_calls)
            yield _speed_row(name, num_rows, seconds, peaks.roofline_s(num_bytes, 0), None, "")
    for num_rows in (2,) if setting.is_tiny else (1, 64):
        yield from _sampling(setting, peaks, config.vocab_size, num_rows)


def _repeat(executable: TritonExecutable, num_rows: int, num_calls: int) -> None:
    """Several times, so that replaying the graph takes no part of the time."""
    for _ in range(num_calls):
        executable.run_body(num_rows)


def _row_ops(
    config: DecoderConfig, num_rows: int
) -> Iterator[tuple[str, Program, dict[WeightName, Weight], float]]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    gain = {WeightName("gain"): DenseWeight(np.ones(hidden, np.float32))}
    program = Program(1, ())
    x, out, residual = (
        program.buffer(name, Rows.TOKENS, hidden, DType.BF16) for name in ("x", "out", "residual")
    )
    program.add(ops.RmsNorm(x, WeightName("gain"), out, 1e-5, residual))
    yield "rms_norm", program, dict(gain), 8.0 * num_rows * hidden
    program = Program(1, ())
    x = program.buffer("x", Rows.TOKENS, 2 * mlp, DType.BF16)
    out = program.buffer("out", Rows.TOKENS, mlp, DType.BF16)
    program.add(ops.ActMul(x, out, ops.Activation.SILU))
    yield "act_mul", program, {}, 6.0 * num_rows * mlp
    for kv_dtype in (DType.BF16, DType.FP8_E4M3):
        spec = KVGroupSpec(1, config.num_kv_heads, config.head_size, kv_dtype)
        program = Program(1, (spec,))
        qkv = program.buffer("qkv", Rows.TOKENS, config.qkv_width, DType.BF16)
        sizes = config.num_heads, config.num_kv_heads, config.head_size
        program.add(ops.RopeStoreKV(qkv, KVLayer(0, 0), *sizes, config.rope))
        moved = 4 * config.q_width + 2 * config.kv_width * (2 + kv_dtype.itemsize)
        yield f"rope_store_kv {kv_dtype}", program, {}, float(num_rows * moved)


def _rows_batch(num_rows: int, program: Program) -> StepBatch:
    maker = BatchMaker((num_rows,), program.kv_groups)
    return replace(maker.batch([Part(0, 0, num_rows)]), token_ids=np.zeros(num_rows, np.int32))


def _sampling(setting: Setting, peaks: Peaks, vocab_size: int, num_rows: int) -> Iterator[Row]:
    """One read of the logits is the roofline; the time includes launching and reading back."""
    records = greedy_rows(num_rows)
    drawn = replace(records, temperature=records.temperature + 1)
    filtered = replace(drawn, top_p=drawn.top_p - np.float32(0.1), top_k=drawn.top_k + 50)
    program = Program(vocab_size, ())
    logits = program.buffer("logits", Rows.LOGITS, vocab_size, DType.F32)
    x = program.input("x", vocab_size, DType.F32)
    program.add(ops.GatherRows(x, logits))
    program.add(ops.Sample(logits))
    executable = _compile(setting, program, {}, num_rows)
    rng = np.random.default_rng(3)
    executable.set_input("x", 3 * rng.standard_normal((num_rows, vocab_size), np.float32))
    for name, sampling in (("greedy", records), ("drawn", drawn), ("top_k, top_p", filtered)):
        batch = replace(
            _rows_batch(num_rows, program),
            logit_rows=np.arange(num_rows, dtype=np.int32),
            sampling=sampling,
        )
        seconds = _host_seconds(setting, partial(executable.run, batch))
        roofline_s = peaks.roofline_s(4.0 * num_rows * vocab_size, 0)
        yield _speed_row(f"sample {name}", num_rows, seconds, roofline_s, None, "host included")


def _host_seconds(setting: Setting, work: Callable[[], object]) -> float:
    """The median of whole calls, as the engine sees them."""
    times = []
    for _ in range(2 if setting.is_tiny else 12):
        begin = perf_counter()
        work()
        setting.synchronize()
        times.append(perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def _compile(
    setting: Setting, program: Program, weights: dict[WeightName, Weight], num_rows: int
) -> TritonExecutable:
    backend = setting.backend(enforce_eager=True)
    groups = program.kv_groups
    num_blocks = num_rows // BLOCK_SIZE + 3
    cache = backend.allocate_kv(KVPlan(groups, (num_blocks,) * len(groups), BLOCK_SIZE))
    max_len = (num_blocks - 1) * BLOCK_SIZE
    return backend.compile(program, weights, cache, Capacity(num_rows, 1, num_rows, max_len))


def _speed_row(
    name: str, num_rows: int, seconds: float, roofline_s: float, own_s: float | None, note: str
) -> Row:
    return {
        "op": name,
        "rows": num_rows,
        "microseconds": round(1e6 * seconds, 1),
        "of the roofline": round(roofline_s / seconds, 3),
        "of torch's": None if own_s is None else round(own_s / seconds, 3),
        "torch": note,
        "ok": True,
    }
