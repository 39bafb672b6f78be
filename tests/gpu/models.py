"""Decoders with seeded weights in any scheme, made in memory.

The large one has Llama-3-8B's geometry. Its layers share one layer's weights, which are larger than
the device's cache, so a step reads as many bytes as with weights of its own for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.core.models import DecoderConfig, KVFormat, build_program, weight_specs
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Op, Rope
from hasten.kernels.program import Program, WeightName
from hasten.kernels.weights import (
    ActivationScheme,
    DenseWeight,
    Fp8Weight,
    GroupedIntWeight,
    Matrix,
    Weight,
)

SCHEMES = ("bf16", "fp8", "fp8-block", "int4", "int8")
POOL_SIZE = (1 << 20) + 7
"""Random numbers are drawn once and repeated: no power of two, so that rows differ."""


def decoder_config(
    hidden: int, mlp: int, num_layers: int, heads: tuple[int, int, int], vocab_size: int
) -> DecoderConfig:
    """`heads` are q heads, KV heads and their size."""
    num_heads, num_kv_heads, head_size = heads
    half = head_size // 2
    return DecoderConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope=Rope(tuple(500_000.0 ** (-i / half) for i in range(half))),
        windows=(None,) * num_layers,
    )


TINY = decoder_config(64, 96, 2, (4, 2, 16), vocab_size=96)
LLAMA_8B = decoder_config(4096, 14336, 32, (32, 8, 128), vocab_size=128256)


@dataclass(frozen=True, slots=True)
class SeededModel:
    """A program for `kv_dtype` and its weights."""

    config: DecoderConfig
    program: Program
    weights: Mapping[WeightName, Weight]

    @property
    def weight_bytes(self) -> int:
        """What a step reads: every use of a weight counts, except of the embedding."""
        names = [name for op in self.program.ops if op.name != "embed" for name in op.weights()]
        return sum(device_bytes(self.weights[name]) for name in names)


def device_bytes(weight: Weight) -> int:
    """What a weight weighs on the device, where plain numbers are bf16."""
    if isinstance(weight, DenseWeight):
        return 2 * int(np.prod(weight.shape))
    return weight.num_bytes


def seeded_model(
    config: DecoderConfig,
    scheme: str,
    kv_dtype: DType,
    *,
    shares_layers: bool = False,
    taps_output: bool = False,
    seed: int = 0,
) -> SeededModel:
    """Matrices of the layers in one of `SCHEMES`; the embedding and the head stay bf16."""
    format_ = KVFormat.uniform(config, kv_dtype)
    tapped = {config.num_layers} if taps_output else ()
    program = build_program(config, DType.BF16, format_, tapped)
    if shares_layers:
        program = replace(program, ops=[_of_first_layer(op) for op in program.ops])
    used = set(program.weight_names())
    rng = np.random.default_rng(seed)
    weights: dict[WeightName, Weight] = {}
    for spec in weight_specs(config):
        if spec.name in used:
            shape = (sum(part.shape[0] for part in spec.parts), *spec.parts[0].shape[1:])
            own_scheme = scheme if spec.quantizable else "bf16"
            weights[spec.name] = _draw(rng, shape, own_scheme)
    return SeededModel(config, program, weights)


def _of_first_layer(op: Op) -> Op:
    """The op with the weights of layer 0."""
    changes = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, str) and value.startswith("layers."):
            changes[field.name] = WeightName(f"layers.0.{value.split('.', 2)[2]}")
    return replace(op, **changes)


def _draw(rng: np.random.Generator, shape: tuple[int, ...], scheme: str) -> Weight:
    if len(shape) == 1:
        return DenseWeight(rng.uniform(0.5, 1.5, shape).astype(np.float32))
    return random_matrix(rng, (shape[0], shape[1]), scheme)


def random_matrix(rng: np.random.Generator, shape: tuple[int, int], scheme: str) -> Matrix:
    """A matrix that about keeps a vector's length."""
    out, width = shape
    spread = 1.5 / np.sqrt(width)
    if scheme == "bf16":
        return DenseWeight(np.resize(spread * rng.standard_normal(POOL_SIZE, np.float32), shape))
    if scheme in ("int4", "int8"):
        return _random_integers(rng, shape, 4 if scheme == "int4" else 8)
    # Codes 0 to 119 and their negatives: up to 240, and no NaN.
    codes = rng.integers(0, 120, POOL_SIZE, np.uint8) | (
        rng.integers(0, 2, POOL_SIZE, np.uint8) << 7
    )
    data = np.resize(codes, shape)
    block, by = (1, width), ActivationScheme.TOKEN
    if scheme == "fp8-block":
        block, by = (128, 128), ActivationScheme.TOKEN_GROUP
    num_scales = -(-out // block[0]), -(-width // block[1])
    scale = rng.uniform(0.5, 1.5, num_scales).astype(np.float32) * np.float32(spread / 60)
    return Fp8Weight(data, scale, block, by)


def _random_integers(
    rng: np.random.Generator, shape: tuple[int, int], bits: int
) -> GroupedIntWeight:
    out, width = shape
    group = 128 if width % 128 == 0 else 32
    spread = 1.5 / np.sqrt(width)
    pool: npt.NDArray[Any] = rng.integers(0, 256, POOL_SIZE, np.uint8)
    num_groups = width // group
    step = spread / (4 if bits == 4 else 64)
    scale = (rng.uniform(0.5, 1.5, (out, num_groups)) * step).astype(np.float16)
    if bits == 4:
        q = np.resize(pool, (out, width // 2))
        return GroupedIntWeight(4, group, q, scale, (-7.5 * scale).astype(np.float16))
    return GroupedIntWeight(8, group, np.resize(pool.view(np.int8), shape), scale, None)
