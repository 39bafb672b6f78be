"""The rotary positions that a GGUF file asks for.

Factors per frequency come as tensors: `rope_freqs` (Llama 3), or `rope_factors_short` and
`rope_factors_long` (Phi-3), of which one set serves all requests: the short one where they cannot
be longer than the original context (`--max-model-len`), else the long one.
Exercised by `pytest tests/unit/loading/test_gguf.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.gguf_families import GGUFFamily
from hasten.core.loading.gguf_file import GGUFFile
from hasten.core.models.rope import (
    LinearScaling,
    Scaling,
    YarnScaling,
    divide_frequencies,
    make_rope,
    yarn_attention_factor,
)
from hasten.kernels.ops import Rope
from hasten.kernels.weights import F32Array
from hasten.quant.gguf_blocks import decode

logger = logging.getLogger(__name__)

ROPE_FREQS = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS)

DEFAULT_ROPE_THETA = 10000.0
"""What the specification means by an absent `rope.freq_base`."""

_ATTENTION_FACTOR = "rope.scaling.attn_factor"
_ORIGINAL_LEN = "rope.scaling.original_context_length"
_REFUSED = (
    "rope.scaling.alpha",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
)


def read_ropes(
    file: GGUFFile, own: Fields, family: GGUFFamily, head_size: int, max_model_len: int | None
) -> tuple[Rope, Rope | None]:
    """The rope of the model, and of its layers with a window where theirs is another."""
    own.refuse_unless("rope.scale_linear", (1.0,))
    for name in _REFUSED:
        if name in own:
            raise own.error(name, "is present, which is not supported")
    rotary_dim = head_size
    if "rope.dimension_count" in own:
        rotary_dim = own.integer("rope.dimension_count", maximum=head_size)
    theta = own.number("rope.freq_base") if "rope.freq_base" in own else DEFAULT_ROPE_THETA
    rope = make_rope(rotary_dim, theta, _scaling(own, family))
    factors = _factors_name(file, own, family, max_model_len)
    if factors is not None:
        rope = divide_frequencies(rope, _factors(file, factors, len(rope.inv_freq)))
    if family.long_factors and _ATTENTION_FACTOR in own:
        rope = replace(rope, scale=own.number(_ATTENTION_FACTOR))
    return rope, _local_rope(own, family, rotary_dim)


def _local_rope(own: Fields, family: GGUFFamily, rotary_dim: int) -> Rope | None:
    if family.local_rope_theta is None:
        return None
    name = "rope.freq_base_swa"
    return make_rope(rotary_dim, own.number(name) if name in own else family.local_rope_theta)


def _scaling(own: Fields, family: GGUFFamily) -> Scaling | None:
    """A factor without a type means linear scaling."""
    kinds = ("none", "linear", "longrope") if family.long_factors else ("none", "linear", "yarn")
    own.refuse_unless("rope.scaling.type", kinds)
    kind = own.text("rope.scaling.type") if "rope.scaling.type" in own else "linear"
    if kind == "yarn":
        return _yarn(own)
    if not family.long_factors:
        own.refuse_unless(_ATTENTION_FACTOR, (1.0,))
    if kind in ("none", "longrope") or "rope.scaling.factor" not in own:
        return None
    return LinearScaling(own.number("rope.scaling.factor"))


def _yarn(own: Fields) -> YarnScaling:
    factor = own.number("rope.scaling.factor")
    extra = own.number(_ATTENTION_FACTOR) if _ATTENTION_FACTOR in own else 1.0
    fast, slow = "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"
    return YarnScaling(
        factor,
        own.integer(_ORIGINAL_LEN),
        extra * yarn_attention_factor(factor),
        beta_fast=own.number(fast) if fast in own else 32.0,
        beta_slow=own.number(slow) if slow in own else 1.0,
    )


def _factors_name(
    file: GGUFFile, own: Fields, family: GGUFFamily, max_model_len: int | None
) -> str | None:
    """The tensor that holds the factors for the frequencies, if there is one."""
    if not family.long_factors:
        return ROPE_FREQS if ROPE_FREQS in file.tensors else None
    if LONG_FACTORS not in file.tensors:
        return None
    max_len = own.integer("context_length")
    served_len = min(max_len, max_model_len or max_len)
    chosen = LONG_FACTORS if served_len > own.integer(_ORIGINAL_LEN) else SHORT_FACTORS
    logger.info("longrope: %s, for requests of up to %d tokens", chosen, served_len)
    return chosen


def _factors(file: GGUFFile, name: str, count: int) -> F32Array:
    tensor = file.tensors.get(name)
    if tensor is None:
        raise LoadError(f"{file.path}: tensor {name!r} is missing")
    divisors = np.asarray(decode(tensor.type, tensor.raw).dequantize().reshape(-1), np.float32)
    if len(divisors) != count or not (divisors > 0).all():
        raise LoadError(f"{file.path}: tensor {name!r} does not hold a factor per frequency")
    return divisors
