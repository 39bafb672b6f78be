"""Programs with the shapes of real models: one layer and the head, in every weight scheme.

Weights are arrays without memory (one number, broadcast); they are only looked at, on "meta".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hasten.kernels import ops
from hasten.kernels.dtypes import DType
from hasten.kernels.program import (
    Capacity,
    KVGroupSpec,
    KVLayer,
    Program,
    Rows,
    WeightName,
)
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    Matrix,
    Weight,
)

CAPACITY = Capacity(max_tokens=2048, max_requests=64, max_logit_rows=64, max_model_len=8192)
ROW_COUNTS = (16, 64, 128, 2048)
"""Rows per step: every row class, with and without segments spread over programs."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that kernels see of a model; experts are (all, active, width), none: None."""

    name: str
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    mlp: int
    vocab_size: int
    int4_group: int = 128
    head_norms: bool = False
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    experts: tuple[int, int, int] | None = None


MODELS = {
    shape.name: shape
    for shape in (
        ModelShape("Llama-3-8B", 4096, 32, 8, 128, 14336, 128256),
        ModelShape("Llama-3-70B", 8192, 64, 8, 128, 28672, 128256),
        ModelShape("Qwen3-8B", 4096, 32, 8, 128, 12288, 151936, head_norms=True),
        ModelShape("SmolLM2-135M", 576, 9, 3, 64, 1536, 49152, int4_group=32),
        ModelShape(
            "experts, window, cap, sinks, odd vocabulary",
            2048,
            32,
            4,
            64,
            768,
            32003,
            window=128,
            softcap=30.0,
            has_sinks=True,
            experts=(128, 8, 768),
        ),
    )
}

SCHEMES = ("bf16", "fp8", "fp8-block", "int4", "int8")


def _zeros(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    return np.broadcast_to(np.zeros((), dtype=dtype), shape)


def make_matrix(scheme: str, out: int, width: int, int4_group: int) -> Matrix:
    """A matrix of zeros in one of `SCHEMES`."""
    if scheme == "bf16":
        return DenseWeight(_zeros((out, width), ml_dtypes.bfloat16))
    if scheme == "int4":
        scale = _zeros((out, width // int4_group), np.float16)
        return GroupedIntWeight(4, int4_group, _zeros((out, width // 2), np.uint8), scale, scale)
    if scheme == "int8":
        scale = _zeros((out, 1), np.float32)
        return GroupedIntWeight(8, width, _zeros((out, width), np.int8), scale, None)
    data = _zeros((out, width), ml_dtypes.float8_e4m3fn)
    if scheme == "fp8":
        return Fp8Weight(data, _zeros((out, 1), np.float32), (1, width), ActivationScheme.TOKEN)
    blocks = _zeros((-(-out // 128), -(-width // 128)), np.float32)
    return Fp8Weight(data, blocks, (128, 128), ActivationScheme.TOKEN_GROUP)


@dataclass(slots=True)
class _Recorder:
    """Records the ops of one layer of a model and its head."""

    shape: ModelShape
    scheme: str
    program: Program
    weights: dict[WeightName, Weight]

    def buffer(self, name: str, width: int, rows: Rows = Rows.TOKENS) -> Any:
        return self.program.shared_buffer(name, rows, width, DType.BF16)

    def vector(self, name: str, width: int) -> WeightName:
        self.weights[WeightName(name)] = DenseWeight(_zeros((width,), ml_dtypes.bfloat16))
        return WeightName(name)

    def linear(self, name: str, x: Any, out: Any) -> None:
        self.weights[WeightName(name)] = make_matrix(
            self.scheme, out.width, x.width, self.shape.int4_group
        )
        self.program.add(ops.Linear(x, WeightName(name), out))

    def attention(self, x: Any) -> None:
        shape, heads = self.shape, self.shape.num_heads * self.shape.head_size
        qkv = self.buffer("qkv", heads + 2 * shape.num_kv_heads * shape.head_size)
        mixed = self.buffer("mixed", heads)
        self.linear("qkv", x, qkv)
        q_norm = self.vector("q_norm", shape.head_size) if shape.head_norms else None
        k_norm = self.vector("k_norm", shape.head_size) if shape.head_norms else None
        sizes = shape.num_heads, shape.num_kv_heads, shape.head_size
        rope = ops.Rope(tuple(np.linspace(1.0, 0.1, shape.head_size // 2).tolist()))
        self.program.add(ops.RopeStoreKV(qkv, KVLayer(0, 0), *sizes, rope, q_norm, k_norm))
        sinks = self.vector("sinks", shape.num_heads) if shape.has_sinks else None
        self.program.add(
            ops.PagedAttention(
                qkv, mixed, KVLayer(0, 0), *sizes, 0.1, shape.window, shape.softcap, sinks
            )
        )
        self.linear("o", mixed, x)

    def mlp(self, x: Any) -> None:
        gate_up = self.buffer("gate_up", 2 * self.shape.mlp)
        hidden = self.buffer("hidden", self.shape.mlp)
        self.linear("gate_up", x, gate_up)
        self.program.add(ops.ActMul(gate_up, hidden, ops.Activation.SILU))
        self.linear("down", hidden, x)

    def experts(self, x: Any, num_experts: int, num_active: int, width: int) -> None:
        logits, routing = self.buffer("router", num_experts), self.buffer("routes", 2 * num_active)
        gate_up = self.buffer("experts.gate_up", 2 * num_active * width)
        hidden = self.buffer("experts.hidden", num_active * width)
        each = self.buffer("experts.out", num_active * x.width)
        self.linear("router", x, logits)
        self.program.add(ops.Route(logits, routing, num_active, renormalize=True))
        self._grouped("experts.up", x, routing, gate_up, (num_experts, num_active, 2))
        self.program.add(ops.ActMul(gate_up, hidden, ops.Activation.SILU))
        self._grouped("experts.down", hidden, routing, each, (num_experts, num_active, 1))
        self.program.add(ops.CombineExperts(each, routing, x))

    def _grouped(
        self, name: str, x: Any, routing: Any, out: Any, counts: tuple[int, int, int]
    ) -> None:
        num_experts, num_active, num_parts = counts
        width = x.width if num_parts > 1 else x.width // num_active
        rows = num_experts * out.width // num_active
        self.weights[WeightName(name)] = make_matrix(
            self.scheme, rows, width, self.shape.int4_group
        )
        self.program.add(ops.GroupedLinear(x, routing, WeightName(name), out, *counts))

    def head(self, x: Any) -> None:
        last = self.buffer("last", self.shape.hidden, Rows.LOGITS)
        logits = self.program.buffer("logits", Rows.LOGITS, self.shape.vocab_size, DType.F32)
        self.program.add(ops.GatherRows(x, last))
        self.linear("head", last, logits)
        self.program.add(ops.ScaleLogits(logits, 0.5, self.shape.softcap))
        self.program.add(ops.Sample(logits))


def record(
    shape: ModelShape, scheme: str, kv_dtype: DType
) -> tuple[Program, Mapping[WeightName, Weight]]:
    """One layer and the head of a model, and its weights."""
    spec = KVGroupSpec(1, shape.num_kv_heads, shape.head_size, kv_dtype, shape.window)
    recorder = _Recorder(shape, scheme, Program(shape.vocab_size, (spec,)), {})
    x = recorder.buffer("x", shape.hidden)
    residual = recorder.buffer("residual", shape.hidden)
    table = (shape.vocab_size, shape.hidden)
    recorder.weights[WeightName("table")] = DenseWeight(_zeros(table, ml_dtypes.bfloat16))
    recorder.program.add(ops.Embed(WeightName("table"), x))
    gain = recorder.vector("gain", shape.hidden)
    recorder.program.add(ops.RmsNorm(x, gain, x, 1e-5, residual))
    recorder.attention(x)
    if shape.experts is None:
        recorder.mlp(x)
    else:
        recorder.experts(x, *shape.experts)
    recorder.head(x)
    return recorder.program, recorder.weights


def all_programs(
    models: tuple[str, ...], schemes: tuple[str, ...]
) -> Iterator[tuple[str, str, DType, Program, Mapping[WeightName, Weight]]]:
    """Every model in every scheme, the quantised ones with an fp8 cache where that is wanted."""
    for name in models:
        for scheme in schemes:
            kv_dtype = DType.FP8_E4M3 if scheme.startswith("fp8") else DType.BF16
            yield name, scheme, kv_dtype, *record(MODELS[name], scheme, kv_dtype)
