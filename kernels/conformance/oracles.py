"""What the ops mean, in numpy and fp64: slow and obvious, one row and one head at a time.

Values are rounded only where `kernels.ops` says that a buffer or the cache holds them. Shapes are
those of the ops; `requests` are ranges of rows that belong together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from hasten.kernels import ops
from hasten.kernels.dtypes import DType
from hasten.kernels.philox import gumbel_noise
from hasten.kernels.small_floats import as_bf16, as_e4m3, e4m3_values
from hasten.kernels.weights import FP8_GROUP, ActivationScheme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.kernels.weights import Fp8Weight

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]


def as_dtype(values: npt.ArrayLike, dtype: DType) -> npt.NDArray[Any]:
    """The nearest numbers of `dtype`, as weights hold them."""
    if dtype is DType.BF16:
        return as_bf16(values)
    return np.asarray(values, dtype=np.float16 if dtype is DType.F16 else np.float32)


def rounded(values: npt.ArrayLike, dtype: DType) -> F64:
    """The nearest numbers of `dtype`, as fp64."""
    return as_dtype(values, dtype).astype(np.float64)


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    root: F64 = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return x / root * weight


def act_mul(x: F64, activation: ops.Activation) -> F64:
    gate, up = np.split(x, 2, axis=-1)
    cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    activated: dict[ops.Activation, F64] = {
        ops.Activation.SILU: gate / (1 + np.exp(-gate)),
        ops.Activation.GELU_TANH: 0.5 * gate * (1 + np.tanh(cubic)),
    }
    return activated[activation] * up


def quantized_rows(x: F64, group_size: int) -> F64:
    """`x` after int8 quantisation per row and group of inputs: amax / 120 steps."""
    groups = x.reshape(len(x), -1, group_size)
    step: F64 = np.abs(groups).max(axis=-1, keepdims=True) / 120
    step[step == 0] = 1
    return (np.round(groups / step) * step).reshape(x.shape)


def e4m3_inputs(x: F64, weight: Fp8Weight) -> F64:
    """`x` as the weight's activation scheme rounds it: per row, per group of 128, or static."""
    if weight.activations is ActivationScheme.NONE:
        return x
    by_group = weight.activations is ActivationScheme.TOKEN_GROUP
    width = FP8_GROUP if by_group else x.shape[1]
    parts = []
    for start in range(0, x.shape[1], width):
        part = x[:, start : start + width].astype(np.float32)
        scale = np.abs(part).max(axis=1, keepdims=True) / np.float32(448)
        if weight.input_scale is not None:
            scale = np.full_like(scale, weight.input_scale)
        scale[scale == 0] = 1
        codes = as_e4m3(np.clip(part / scale, -448, 448))
        parts.append(e4m3_values(codes).astype(np.float64) * scale)
    return np.concatenate(parts, axis=1)


def fp8_heads(x: F64, static_scale: float | None) -> F64:
    """K or V, [T, heads, head_size], as an fp8 cache gives them back."""
    wide = x.astype(np.float32)
    scale = np.abs(wide).max(axis=-1, keepdims=True) / np.float32(448)
    if static_scale is not None:
        scale = np.full_like(scale, static_scale)
    scale = as_bf16(scale).astype(np.float32)
    scale[scale == 0] = 1
    codes = as_e4m3(np.clip(wide / scale, -448, 448))
    held: F64 = e4m3_values(codes).astype(np.float64) * scale
    return held


def rotate(heads: F64, position: int, rope: ops.Rope) -> F64:
    """All heads of one token, [heads, head_size]."""
    angles = (np.float32(position) * np.asarray(rope.inv_freq, dtype=np.float32)).astype(float)
    cos, sin = np.cos(angles) * rope.scale, np.sin(angles) * rope.scale
    half = len(angles)
    first, second = heads[:, :half], heads[:, half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin, heads[:, 2 * half :])
    return np.concatenate(turned, axis=1)


def rope_store_kv(
    op: ops.RopeStoreKV, qkv: F64, positions: Sequence[int], norms: dict[str, F64]
) -> tuple[F64, F64, F64]:
    """q, k and v of every token, [T, heads, head_size], before they are rounded anywhere."""
    heads = qkv.reshape(len(qkv), -1, op.head_size)
    q = heads[:, : op.num_heads]
    k = heads[:, op.num_heads : op.num_heads + op.num_kv_heads]
    if op.q_norm is not None:
        q = rms_norm(q, norms[op.q_norm], op.norm_eps)
    if op.k_norm is not None:
        k = rms_norm(k, norms[op.k_norm], op.norm_eps)
    q = np.stack([rotate(row, at, op.rope) for row, at in zip(q, positions, strict=True)])
    k = np.stack([rotate(row, at, op.rope) for row, at in zip(k, positions, strict=True)])
    return q, k, heads[:, op.num_heads + op.num_kv_heads :]


def attention(
    op: ops.PagedAttention,
    qkv: tuple[F64, F64, F64],
    requests: Sequence[range],
    sinks: F64 | None,
) -> F64:
    """[T, num_heads * head_size]; each request's rows attend to its own rows up to themselves."""
    q, k, v = qkv
    out = np.zeros((len(q), op.num_heads, op.head_size))
    group = op.num_heads // op.num_kv_heads
    for rows in requests:
        for at, row in enumerate(rows):
            low = 0 if op.window is None else max(0, at - op.window + 1)
            seen = slice(rows.start + low, row + 1)
            for head in range(op.num_heads):
                scores = k[seen, head // group] @ q[row, head] * op.scale
                if op.softcap is not None:
                    scores = op.softcap * np.tanh(scores / op.softcap)
                sink = -np.inf if sinks is None else sinks[head]
                peak = max(scores.max(), sink)
                weights = np.exp(scores - peak)
                total = weights.sum() + np.exp(sink - peak)
                out[row, head] = weights @ v[seen, head // group] / total
    return out.reshape(len(q), -1)


# --- sampling -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplingRecord:
    """One row of `SamplingRows`, in plain Python."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    position: int = 0
    sample_idx: int = 0
    num_logprobs: int = -1
    target_id: int = -1
    counts: tuple[tuple[int, int], ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SampledRow:
    """`margin` is how near another outcome was, as a difference of scores or of probabilities:
    a backend may differ where it is within the rounding of its arithmetic.
    """

    token_id: int
    margin: float
    logprobs: F64  # [vocab]


def sample(logits: F32, record: SamplingRecord) -> SampledRow:
    """`ops.Sample` for one row, [vocab] fp32."""
    raw = logits.astype(np.float64)
    logprobs = raw - raw.max() - math.log(np.exp(raw - raw.max()).sum())
    if record.target_id >= 0:
        return SampledRow(record.target_id, math.inf, logprobs)
    adjusted = _adjusted(raw, record)
    if record.temperature == 0:
        return SampledRow(int(adjusted.argmax()), _gap(adjusted), logprobs)
    tempered = adjusted / record.temperature
    kept, margin = _filtered(tempered, record)
    noise = gumbel_noise(record.seed, record.position, record.sample_idx, kept)
    noisy = np.full(len(raw), -np.inf)
    noisy[kept] = tempered[kept] + noise
    return SampledRow(int(noisy.argmax()), min(margin, _gap(noisy)), logprobs)


def _adjusted(logits: F64, record: SamplingRecord) -> F64:
    adjusted = logits.copy()
    for token_id, count in record.counts:
        value = adjusted[token_id]
        penalty = record.repetition_penalty
        value = value / penalty if value > 0 else value * penalty
        value -= record.frequency_penalty * count
        adjusted[token_id] = value - record.presence_penalty * (count > 0)
    for token_id, bias in record.bias:
        adjusted[token_id] += bias
    if record.allowed is not None:
        forbidden = np.setdiff1d(np.arange(len(adjusted)), record.allowed)
        adjusted[forbidden] = -np.inf
    return adjusted


def _filtered(tempered: F64, record: SamplingRecord) -> tuple[npt.NDArray[np.intp], float]:
    """The token ids that min_p, top_k and top_p keep, and how near another set was."""
    kept = np.lexsort((np.arange(len(tempered)), -tempered))  # most likely first, then lowest id
    margin = math.inf
    if record.min_p > 0:
        relative = np.exp(tempered[kept] - tempered[kept[0]])
        margin = min(margin, float(np.abs(relative - record.min_p).min()))
        kept = kept[relative >= record.min_p]
    if record.top_k > 0:
        kept = kept[: record.top_k]
    if record.top_p < 1:
        weights = np.exp(tempered[kept] - tempered[kept[0]])
        mass = np.cumsum(weights) / weights.sum()
        margin = min(margin, float(np.abs(mass - record.top_p).min()))
        kept = kept[: int(np.argmax(mass >= record.top_p)) + 1]
    return kept, margin


def _gap(scores: F64) -> float:
    """The difference of the two largest: 0 where the lowest id decides, which is no near miss."""
    if len(scores) < 2:
        return math.inf
    second, first = np.sort(scores)[-2:]
    return math.inf if first == second else float(first - second)
