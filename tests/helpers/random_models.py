"""Tiny random decoders made in memory, without a checkpoint or transformers.

The weights are large enough that attention and logits are far from uniform, so that a wrong bit
anywhere shows in the text.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from hasten.core.loading import LoadedModel, ModelInfo
from hasten.core.models import DecoderConfig, weight_specs
from hasten.kernels.ops import Rope
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight, Weight

HEAD_SIZE = 32  # what a matrix unit takes


def tiny_config(
    vocab_size: int = 96,
    windows: tuple[int | None, ...] = (None, None),
    *,
    qk_norm: bool = False,
    head_size: int = HEAD_SIZE,
) -> DecoderConfig:
    """Two layers or so, 64 wide, four heads over two KV heads."""
    return DecoderConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_layers=len(windows),
        num_heads=4,
        num_kv_heads=2,
        head_size=head_size,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope=Rope(tuple(float(10_000.0 ** (-2 * i / head_size)) for i in range(head_size // 2))),
        windows=windows,
        qk_norm=qk_norm,
    )


def random_model(config: DecoderConfig, seed: int = 0) -> LoadedModel:
    """A model with weights drawn from `seed`."""
    rng = np.random.default_rng(seed)
    weights: dict[WeightName, Weight] = {}
    for spec in weight_specs(config):
        num_rows = sum(part.shape[0] for part in spec.parts)
        shape = (num_rows, *spec.parts[0].shape[1:])
        weights[spec.name] = DenseWeight(_draw(rng, shape))
    info = ModelInfo(
        name="random",
        path=Path("random"),
        config=config,
        eos_token_ids=(0,),
        generation_defaults={},
    )
    return LoadedModel(info, weights, hashlib.sha256(repr((config, seed)).encode()).hexdigest())


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...]]:
    """Matrices that keep a vector's length; vectors (norms, biases) near one."""
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return rng.normal(0.0, 1.5 / np.sqrt(shape[-1]), shape).astype(np.float32)
