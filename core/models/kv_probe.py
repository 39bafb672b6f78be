"""Which layers bear an fp8 KV cache: attention over it against attention over a plain one.

The probe is the model's own step with every attention recorded twice, on the same q, k and v: once
over the plain cache, which the model goes on with, and once over an fp8 one. A layer whose outputs
differ by more than `MAX_RELATIVE_ERROR` (norms over all probed tokens) keeps a plain cache.
Exercised by `pytest tests/cpu/quant/test_kv_probe.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hasten.core.models.kv import KVFormat
from hasten.core.prompt_batch import PromptChunk, PromptLayout
from hasten.kernels.backend import Backend
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import PagedAttention, RopeStoreKV, Tap
from hasten.kernels.program import Buffer, Capacity, KVLayer, Program, WeightName
from hasten.kernels.weights import F32Array, Weight

MAX_RELATIVE_ERROR = 0.15
"""Twice what the worst layer of a sound model was seen to err by; see docs/quantisation.md."""
NUM_PROBE_TOKENS = 512
CHUNK_LEN = 128


@dataclass(frozen=True, slots=True)
class KVProbe:
    """The relative error of every layer's attention output over an fp8 cache."""

    errors: tuple[float, ...]

    def format(self, wanted: KVFormat, plain: DType) -> KVFormat:
        """`wanted`, with `plain` in the layers that do not bear fp8."""
        dtypes = tuple(
            dtype if error <= MAX_RELATIVE_ERROR else plain
            for dtype, error in zip(wanted.dtypes, self.errors, strict=True)
        )
        return replace(wanted, dtypes=dtypes)

    def lines(self) -> list[str]:
        """The report: the worst layer, and each that falls back."""
        worst = int(np.argmax(self.errors))
        lines = [
            f"fp8 KV cache: attention errs by at most {self.errors[worst]:.3f} (layer {worst})"
        ]
        lines += [
            f"layer {idx} keeps a plain KV cache: error {error:.3f} exceeds {MAX_RELATIVE_ERROR}"
            for idx, error in enumerate(self.errors)
            if error > MAX_RELATIVE_ERROR
        ]
        return lines


def probe_kv(
    program: Program,
    weights: Mapping[WeightName, Weight],
    backend: Backend,
    token_ids: Sequence[int],
    scales: KVFormat,
) -> KVProbe:
    """Run `token_ids` through `program`, recorded with a plain cache, and compare all layers."""
    probe = probe_program(program, scales)
    ids = np.asarray(token_ids, np.int32)
    layout = PromptLayout(probe.kv_groups, num_requests=1, max_len=len(ids))
    capacity = Capacity(CHUNK_LEN, 1, 1, len(ids))
    executable = backend.compile(probe, weights, backend.allocate_kv(layout.kv_plan()), capacity)
    wrong = np.zeros(len(scales.dtypes))
    total = np.zeros(len(scales.dtypes))
    for start in range(0, len(ids), CHUNK_LEN):
        executable.run(layout.batch([PromptChunk(ids[start : start + CHUNK_LEN], start)]))
        for idx in range(len(wrong)):
            plain, fp8 = executable.tap(f"plain.{idx}"), executable.tap(f"fp8.{idx}")
            wrong[idx] += _sum_of_squares(fp8 - plain)
            total[idx] += _sum_of_squares(plain)
    return KVProbe(tuple(np.sqrt(wrong / np.maximum(total, 1e-30)).tolist()))


def probe_program(program: Program, scales: KVFormat) -> Program:
    """The body of `program` with an fp8 attention beside every attention of it."""
    fp8_groups = tuple(replace(spec, dtype=DType.FP8_E4M3) for spec in program.kv_groups)
    made = Program(program.vocab_size, (*program.kv_groups, *fp8_groups))
    made.buffers.extend(program.buffers)
    body, _ = program.split()
    attention = next(op for op in body if isinstance(op, PagedAttention))
    qkv = _like(made, attention.qkv, "fp8.qkv")
    out = _like(made, attention.out, "fp8.out")
    num_layers = 0
    for op in body:
        if isinstance(op, RopeStoreKV):
            static = scales.scales.get(num_layers)
            made.add(Tap(op.qkv, qkv))
            made.add(replace(op, qkv=qkv, kv=_fp8_layer(program, op.kv), kv_scales=static))
        made.add(op)
        if isinstance(op, PagedAttention):
            made.add(replace(op, qkv=qkv, out=out, kv=_fp8_layer(program, op.kv)))
            made.tap(f"plain.{num_layers}", op.out)
            made.tap(f"fp8.{num_layers}", out)
            num_layers += 1
    return made


def _like(program: Program, buffer: Buffer, name: str) -> Buffer:
    return program.buffer(name, buffer.rows, buffer.width, buffer.dtype)


def _fp8_layer(program: Program, plain: KVLayer) -> KVLayer:
    """Where the fp8 twin of a layer's cache lies: its group follows those of `program`."""
    return KVLayer(plain.group_id + len(program.kv_groups), plain.layer_idx)


def _sum_of_squares(values: F32Array) -> float:
    wide = values.astype(np.float64).reshape(-1)
    return float(wide @ wide)
