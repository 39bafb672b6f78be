"""The cases of the suite, except sampling: tiny programs with known inputs and expected outputs.

The only input of a program is its token ids, so an op's operands are embedded: row i of the
workload has token id i, whose row in the table is the operand. One more row holds NaN, to poison
cache blocks with. Results are read through a tap named `OUT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.kernels import ops
from hasten.kernels.conformance import oracles
from hasten.kernels.conformance.oracles import F64, as_dtype, rounded
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Buffer, KVGroupSpec, KVLayer, Program, Rows, WeightName
from hasten.kernels.small_floats import as_e4m3
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    Matrix,
    StackedWeight,
    Weight,
)

OUT = "out"
NUM_ROWS = 130
"""Rows of row-wise cases: enough for every cut length at least once, and more than a tile."""

ActivationGroup = Callable[[Weight, DType], int | None]
"""Inputs per group in which a linear quantises its activations to int8; None: it does not."""


def never_quantized(_weight: Weight, _dtype: DType) -> int | None:
    """Of backends that do as `ops.Linear` says, and round the inputs of fp8 weights only.

    Those that choose their own activation arithmetic leave the inputs of fp8 weights as they are.
    """
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """One program over one workload. `expected` is what the tap's `columns` should hold.

    `allowance` widens the bound, relative to the largest expected magnitude.
    """

    op: str
    name: str
    dtype: DType
    program: Program
    weights: Mapping[WeightName, Weight]
    lengths: tuple[int, ...]
    expected: F64
    columns: slice = field(default_factory=lambda: slice(None))
    allowance: float = 0.0

    @property
    def poison_id(self) -> int:
        """The token whose operands are NaN."""
        return sum(self.lengths)


@dataclass(slots=True)
class Recorder:
    """Records one program; operands come from `rng` and are representable in `dtype`."""

    dtype: DType
    lengths: tuple[int, ...] = (NUM_ROWS,)
    kv_groups: tuple[KVGroupSpec, ...] = ()
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20))
    weights: dict[WeightName, Weight] = field(default_factory=dict)
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        self.program = Program(vocab_size=sum(self.lengths) + 1, kv_groups=self.kv_groups)

    def operand(self, name: str, width: int, spread: float = 1.0) -> tuple[Buffer, F64]:
        """A buffer that holds random rows, and those rows."""
        num_rows = sum(self.lengths)
        values = rounded(spread * self.rng.standard_normal((num_rows, width)), self.dtype)
        table = np.concatenate([values, np.full((1, width), np.nan)])
        buffer = self.buffer(name, width)
        self.program.add(ops.Embed(self.weight(f"{name}.table", table), buffer))
        return buffer, values

    def buffer(self, name: str, width: int) -> Buffer:
        return self.program.buffer(name, Rows.TOKENS, width, self.dtype)

    def weight(self, name: str, values: npt.NDArray[Any]) -> WeightName:
        """A dense weight of the case's dtype."""
        dense = DenseWeight(as_dtype(values, self.dtype))
        self.weights[WeightName(name)] = dense
        return WeightName(name)

    def case(
        self,
        name: str,
        out: Buffer,
        expected: F64,
        columns: slice = slice(None),
        allowance: float = 0.0,
    ) -> Case:
        """Tap `out` and close the case; the op it is about is the last one recorded."""
        op = self.program.ops[-1].name
        self.program.tap(OUT, out)
        return Case(
            op,
            name,
            self.dtype,
            self.program,
            self.weights,
            self.lengths,
            expected,
            columns,
            allowance,
        )


def all_cases(dtype: DType, activation_group: ActivationGroup) -> Iterator[Case]:
    """Every case in one activation dtype; the KV cache holds the same."""
    yield from _embed_cases(dtype)
    yield from _rms_norm_cases(dtype)
    yield from _act_mul_cases(dtype)
    yield from _linear_cases(dtype, activation_group)
    yield from _rope_cases(dtype)
    yield from _attention_cases(dtype)


def _embed_cases(dtype: DType) -> Iterator[Case]:
    for width, scale in ((1, 1.0), (65, 1.0), (64, 4.0)):
        recorder = Recorder(dtype)
        values = recorder.rng.standard_normal((NUM_ROWS + 1, width))
        out = recorder.buffer(OUT, width)
        table = recorder.weight("table", values)
        recorder.program.add(ops.Embed(table, out, scale))
        expected = rounded(values, dtype)[:NUM_ROWS] * scale
        yield recorder.case(f"width {width}, scale {scale:g}", out, expected)
    yield _packed_embed_case(dtype)


def _packed_embed_case(dtype: DType) -> Case:
    recorder = Recorder(dtype)
    out = recorder.buffer(OUT, 64)
    table = _grouped(recorder.rng, 8, (NUM_ROWS + 1, 64), with_offset=False)
    recorder.weights[WeightName("table")] = table
    recorder.program.add(ops.Embed(WeightName("table"), out))
    expected = table.dequantize()[:NUM_ROWS].astype(np.float64)
    return recorder.case("width 64, int8 table", out, expected)


def _rms_norm_cases(dtype: DType) -> Iterator[Case]:
    for width in (1, 37, 64, 576):
        for with_residual in (False, True):
            recorder = Recorder(dtype)
            x, values = recorder.operand("x", width)
            residual = None
            if with_residual:
                residual, base = recorder.operand("residual", width, spread=4.0)
                values = rounded(values + base, dtype)
            gain = rounded(recorder.rng.uniform(0.5, 2.0, width), dtype)
            out = recorder.buffer(OUT, width)
            weight = recorder.weight("gain", gain)
            recorder.program.add(ops.RmsNorm(x, weight, out, 1e-5, residual))
            name = f"width {width}{', residual' if with_residual else ''}"
            yield recorder.case(name, out, oracles.rms_norm(values, gain, 1e-5))


def _act_mul_cases(dtype: DType) -> Iterator[Case]:
    for activation in ops.Activation:
        for width in (1, 33, 128, 1537):
            recorder = Recorder(dtype)
            x, values = recorder.operand("x", 2 * width, spread=3.0)
            out = recorder.buffer(OUT, width)
            recorder.program.add(ops.ActMul(x, out, activation))
            expected = oracles.act_mul(values, activation)
            yield recorder.case(f"{activation}, width {width}", out, expected)


# --- linear -------------------------------------------------------------------------------------


def _linear_cases(dtype: DType, activation_group: ActivationGroup) -> Iterator[Case]:
    for width, out_width in ((7, 5), (33, 1), (64, 65), (576, 257), (1536, 64)):
        recorder = Recorder(dtype)
        dense = _dense(recorder.rng, (out_width, width), dtype)
        yield _linear_case(recorder, "dense", dense, activation_group)
    for bits in (4, 8):
        for width, out_width in ((32, 1), (64, 33), (96, 128), (576, 320), (1536, 65)):
            recorder = Recorder(dtype)
            grouped = _grouped(recorder.rng, bits, (out_width, width), with_offset=bits == 4)
            yield _linear_case(recorder, f"int{bits} groups of 32", grouped, activation_group)
    for name, weight in (*_wide_groups(), *_fp8_weights()):
        yield _linear_case(Recorder(dtype), name, weight, activation_group)
    recorder = Recorder(dtype)
    yield _linear_case(recorder, "stacked", _stacked(recorder.rng, dtype), activation_group)
    recorder = Recorder(dtype)
    dense = _dense(recorder.rng, (48, 64), dtype)
    yield _linear_case(recorder, "dense, bias", dense, activation_group, with_bias=True)


def _linear_case(
    recorder: Recorder,
    name: str,
    weight: Weight,
    activation_group: ActivationGroup,
    with_bias: bool = False,
) -> Case:
    out_width, width = weight.shape
    x, values = recorder.operand("x", width)
    recorder.weights[WeightName("weight")] = weight
    expected, allowance = expected_product(values, weight, recorder.dtype, activation_group)
    bias = None
    if with_bias:
        added = rounded(recorder.rng.standard_normal(out_width), recorder.dtype)
        bias, expected = recorder.weight("bias", added), expected + added
    out = recorder.buffer(OUT, out_width)
    recorder.program.add(ops.Linear(x, WeightName("weight"), out, bias))
    return recorder.case(f"{name}, {width} x {out_width}", out, expected, allowance=allowance)


def expected_product(
    values: F64, weight: Weight, dtype: DType, activation_group: ActivationGroup
) -> tuple[F64, float]:
    """X @ W^T part by part, activations quantised where the backend says so; and an allowance.

    Where an activation lies between two steps the backend may take the other one: the allowance
    is two such steps in one row; for e4m3, whose steps are an eighth of the number, three of
    ordinary numbers, less than leaving the inputs as they are would cost.
    """
    products, allowance = [], 0.0
    for part in weight.parts if isinstance(weight, StackedWeight) else (weight,):
        matrix = part.dequantize().astype(np.float64)
        group_size = activation_group(part, dtype)
        x, flip = values, 0.0
        if isinstance(part, Fp8Weight) and activation_group is never_quantized:
            x = oracles.e4m3_inputs(values, part)
            flip = 3 / 8 * values.std() * matrix.std() * (x is not values)
        elif group_size is not None:
            x = oracles.quantized_rows(values, group_size)
            flip = 2 / 120 * np.abs(values).max() * np.abs(matrix).max()
        products.append(x @ matrix.T)
        allowance = max(allowance, float(flip / np.abs(products[-1]).max()))
    return np.concatenate(products, axis=1), allowance


def _wide_groups() -> Iterator[tuple[str, Matrix]]:
    """int4 in other groups than 32: wider, a whole row, and scattered ones (`g_idx`)."""
    rng = np.random.default_rng(23)
    for group_size, shape in ((64, (33, 576)), (128, (20, 256)), (96, (5, 96))):
        name = f"int4 groups of {group_size}"
        yield name, _grouped(rng, 4, shape, with_offset=True, group_size=group_size)
    scattered = _grouped(rng, 4, (40, 192), with_offset=True)
    g_idx = rng.permutation(np.arange(192, dtype=np.int32) // 32)
    yield "int4 with g_idx", replace(scattered, g_idx=g_idx)


def _fp8_weights() -> Iterator[tuple[str, Matrix]]:
    """Every granularity of scales, every scheme of inputs, ragged blocks."""
    rng = np.random.default_rng(24)
    for scheme, shape, block in (
        (ActivationScheme.NONE, (33, 96), (1, 96)),
        (ActivationScheme.TOKEN, (64, 200), (1, 200)),
        (ActivationScheme.TOKEN, (17, 64), (17, 64)),
        (ActivationScheme.TOKEN_GROUP, (130, 200), (128, 128)),
        (ActivationScheme.TOKEN_GROUP, (40, 256), (1, 128)),
        (ActivationScheme.STATIC, (33, 96), (33, 96)),
    ):
        data = 100 * rng.standard_normal(shape)
        num_scales = -(-shape[0] // block[0]), -(-shape[1] // block[1])
        scale = rng.uniform(0.005, 0.02, num_scales) / np.sqrt(shape[1])
        weight = Fp8Weight(
            as_e4m3(np.clip(data, -448, 448)),
            scale.astype(np.float32),
            block,
            scheme,
            0.007 if scheme is ActivationScheme.STATIC else None,
        )
        yield f"fp8 blocks of {block[0]} x {block[1]}, inputs {scheme}", weight


def _dense(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> DenseWeight:
    values = rng.standard_normal(shape) / np.sqrt(shape[1])
    return DenseWeight(as_dtype(values, dtype))


def _grouped(
    rng: np.random.Generator,
    bits: int,
    shape: tuple[int, int],
    *,
    with_offset: bool,
    group_size: int = 32,
) -> GroupedIntWeight:
    out, width = shape
    if bits == 4:
        q: npt.NDArray[Any] = rng.integers(0, 256, (out, width // 2), dtype=np.uint8)
        middle, step = 7.5, 0.2 / np.sqrt(width)
    else:
        q = rng.integers(-127, 128, (out, width), dtype=np.int8)
        middle, step = 0.0, 0.014 / np.sqrt(width)
    scale = (rng.uniform(0.5, 1.5, (out, width // group_size)) * step).astype(np.float16)
    offset = (-middle * scale).astype(np.float16) if with_offset else None
    return GroupedIntWeight(bits, group_size, q, scale, offset)


def _stacked(rng: np.random.Generator, dtype: DType) -> StackedWeight:
    parts: tuple[Matrix, ...] = (
        _grouped(rng, 4, (40, 96), with_offset=True),
        _dense(rng, (17, 96), dtype),
        _grouped(rng, 8, (32, 96), with_offset=False),
    )
    return StackedWeight(parts)


# --- rotation, cache, attention -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heads:
    """The geometry and the options of an attention layer."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    lengths: tuple[int, ...] = (130, 1, 17, 64, 65)
    rotary_dim: int | None = None
    window: int | None = None
    softcap: float | None = None
    with_sinks: bool = False
    with_norms: bool = False
    has_fp8_cache: bool = False
    kv_scales: tuple[float, float] | None = None

    def __str__(self) -> str:
        parts = [f"{self.num_heads}/{self.num_kv_heads} heads of {self.head_size}"]
        parts += [f"rotary {self.rotary_dim}"] if self.rotary_dim else []
        parts += [f"window {self.window}"] if self.window else []
        parts += [f"softcap {self.softcap:g}"] if self.softcap else []
        parts += ["sinks"] if self.with_sinks else []
        parts += ["norms"] if self.with_norms else []
        parts += ["fp8 cache"] if self.has_fp8_cache else []
        parts += ["static scales"] if self.kv_scales else []
        return ", ".join(parts)

    @property
    def rope(self) -> ops.Rope:
        half = (self.rotary_dim or self.head_size) // 2
        return ops.Rope(tuple(1e4 ** (-i / half) for i in range(half)))

    @property
    def positions(self) -> list[int]:
        return [at for length in self.lengths for at in range(length)]

    @property
    def requests(self) -> list[range]:
        stops = np.cumsum(self.lengths).tolist()
        return [
            range(stop - length, stop) for stop, length in zip(stops, self.lengths, strict=True)
        ]


def _rope_cases(dtype: DType) -> Iterator[Case]:
    for heads in (
        _Heads(3, 1, 16),
        _Heads(2, 2, 32, rotary_dim=12),
        _Heads(4, 2, 64, with_norms=True),
    ):
        recorder, qkv, op, (q, _, _) = _record_rope(dtype, heads)
        recorder.program.add(op)
        width = heads.num_heads * heads.head_size
        yield recorder.case(str(heads), qkv, q.reshape(len(q), -1), slice(0, width))


def _attention_cases(dtype: DType) -> Iterator[Case]:
    for heads in (
        _Heads(1, 1, 16),
        _Heads(9, 3, 64),
        _Heads(8, 1, 32),
        _Heads(4, 2, 24, rotary_dim=8),
        _Heads(4, 2, 128, lengths=(70, 33)),
        _Heads(6, 3, 16, window=1),
        _Heads(6, 3, 16, window=17),
        _Heads(6, 3, 16, window=64),
        _Heads(4, 4, 32, softcap=5.0),
        _Heads(6, 2, 32, with_sinks=True),
        _Heads(4, 2, 32, window=33, softcap=20.0, with_sinks=True, with_norms=True),
        _Heads(9, 3, 64, has_fp8_cache=True),
        _Heads(4, 2, 24, rotary_dim=8, has_fp8_cache=True),
        _Heads(6, 3, 16, window=17, with_sinks=True, has_fp8_cache=True),
        _Heads(4, 2, 32, softcap=20.0, has_fp8_cache=True, kv_scales=(0.011, 0.003)),
    ):
        yield _attention_case(dtype, heads)


def _attention_case(dtype: DType, heads: _Heads) -> Case:
    recorder, qkv, rope_op, (q, k, v) = _record_rope(dtype, heads)
    recorder.program.add(rope_op)
    sinks, sink_values = None, None
    if heads.with_sinks:
        sink_values = rounded(recorder.rng.standard_normal(heads.num_heads), dtype)
        sinks = recorder.weight("sinks", sink_values)
    out = recorder.buffer(OUT, heads.num_heads * heads.head_size)
    op = ops.PagedAttention(
        qkv,
        out,
        rope_op.kv,
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_size,
        scale=heads.head_size**-0.5,
        window=heads.window,
        softcap=heads.softcap,
        sinks=sinks,
    )
    recorder.program.add(op)
    k, v = rounded(k, dtype), rounded(v, dtype)
    if heads.has_fp8_cache:
        k_scale, v_scale = heads.kv_scales or (None, None)
        k, v = oracles.fp8_heads(k, k_scale), oracles.fp8_heads(v, v_scale)
    expected = oracles.attention(op, (rounded(q, dtype), k, v), heads.requests, sink_values)
    return recorder.case(str(heads), out, expected)


def _record_rope(
    dtype: DType, heads: _Heads
) -> tuple[Recorder, Buffer, ops.RopeStoreKV, tuple[F64, F64, F64]]:
    """A recorder with qkv embedded, the op that rotates and stores it, and expected q, k and v.

    The layer is the second of its group, and other groups' layouts must not matter to it.
    """
    kv_dtype = DType.FP8_E4M3 if heads.has_fp8_cache else dtype
    spec = KVGroupSpec(2, heads.num_kv_heads, heads.head_size, kv_dtype, heads.window)
    recorder = Recorder(dtype, heads.lengths, (spec,))
    width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_size
    qkv, values = recorder.operand("qkv", width, spread=1.5)
    norms: dict[str, F64] = {}
    if heads.with_norms:
        for name in ("q_norm", "k_norm"):
            norms[name] = rounded(recorder.rng.uniform(0.5, 2.0, heads.head_size), dtype)
            recorder.weight(name, norms[name])
    op = ops.RopeStoreKV(
        qkv,
        KVLayer(0, 1),
        heads.num_heads,
        heads.num_kv_heads,
        heads.head_size,
        heads.rope,
        WeightName("q_norm") if norms else None,
        WeightName("k_norm") if norms else None,
        kv_scales=heads.kv_scales,
    )
    return recorder, qkv, op, oracles.rope_store_kv(op, values, heads.positions, norms)
