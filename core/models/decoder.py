"""The decoder, recorded once as a step program, for every family that we know.

What tells the families apart is data (`DecoderConfig`), so there is one recording for all:

    embed -> residual
    each layer:  norm -> qkv -> rope, store K and V -> attention -> o
                 residual += o, norm -> gate_up -> act_mul -> down      (added by the next norm)
    rows that want logits:  gather -> residual += down, norm -> lm_head -> sample

Norms after a block come between `o` or `down` and the addition. Where a block has no norm before
it, or what is added is scaled first, the addition is an op of its own. Activations live in a
handful of buffers that all layers share. Exercised by
`pytest tests/unit/loading/test_decoder.py tests/cpu/models`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from hasten.core.models.config import DecoderConfig, NormPlacement
from hasten.core.models.experts import record_experts
from hasten.core.models.kv import KVFormat, kv_groups, kv_layers
from hasten.core.models.weights import EMBED, FINAL_NORM, LM_HEAD, layer_weight
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import (
    ActMul,
    AddScaled,
    Embed,
    GatherRows,
    Linear,
    NormColumns,
    PagedAttention,
    RmsNorm,
    RopeStoreKV,
    Sample,
    ScaleLogits,
)
from hasten.kernels.program import Buffer, KVLayer, Program, Rows, WeightName
from hasten.kernels.small_floats import as_bf16


def build_program(
    config: DecoderConfig,
    activation_dtype: DType,
    kv_format: KVFormat,
    feature_layers: Collection[int] = (),
) -> Program:
    """Record the whole step, from token ids to sampled tokens.

    What enters each of the `feature_layers` is tapped (`feature_tap`); the number of layers stands
    for what leaves the last one, before the final norm.
    """
    program = Program(config.vocab_size, kv_groups(config, kv_format))
    stream = _Stream.begin(program, config, activation_dtype)
    for layer_idx, kv in enumerate(kv_layers(config, kv_format)):
        if layer_idx in feature_layers:
            stream.tap(feature_tap(layer_idx))
        layer = LayerRecorder(program, config, layer_idx, activation_dtype)
        layer.attend(stream, kv, kv_format.scales.get(layer_idx))
        layer.feed_forward(stream)
    if config.num_layers in feature_layers:
        stream.tap(feature_tap(config.num_layers))
    _record_head(stream)
    return program


def feature_tap(layer_idx: int) -> str:
    """The tap on what enters a layer."""
    return f"hidden.{layer_idx}"


@dataclass(slots=True)
class _Stream:
    """The residual stream: what blocks read from it and add to it.

    `pending` is what the last block adds; it is added when the next one, or the head, reads.
    """

    program: Program
    config: DecoderConfig
    residual: Buffer
    delta: Buffer  # [T, hidden], where blocks leave their output
    normed: Buffer
    post: Buffer | None  # `delta` after a norm
    pending: Buffer | None = None

    @classmethod
    def begin(cls, program: Program, config: DecoderConfig, dtype: DType) -> _Stream:
        """Record the embedding."""

        def tokens(name: str) -> Buffer:
            return program.buffer(name, Rows.TOKENS, config.hidden_size, dtype)

        has_post = config.norms is not NormPlacement.BEFORE
        residual, delta, normed = tokens("residual"), tokens("delta"), tokens("normed")
        program.add(Embed(EMBED, residual, _as_stored(config.embedding_multiplier, dtype)))
        return cls(program, config, residual, delta, normed, tokens("post") if has_post else None)

    def enter(self, norm: WeightName) -> Buffer:
        """What a block reads; `norm` stands before it if the family has norms there."""
        if self.config.norms is NormPlacement.AFTER:
            self._add_pending()
            return self.residual
        self.record_norm(norm, self.residual, self.normed)
        return self.normed

    def leave(self, norm: WeightName) -> None:
        """Take `delta` as what a block adds; `norm` stands after it if the family has such."""
        self.pending = self.delta
        if self.post is not None:
            self.program.add(RmsNorm(self.delta, norm, self.post, self.config.rms_norm_eps))
            self.pending = self.post

    def record_norm(self, norm: WeightName, residual: Buffer, out: Buffer) -> None:
        """Add what is pending to `residual` and normalise it."""
        eps = self.config.rms_norm_eps
        if self.pending is not None and self.config.residual_multiplier == 1.0:
            self.program.add(RmsNorm(self.pending, norm, out, eps, residual=residual))
        else:
            self._add_pending()
            self.program.add(RmsNorm(residual, norm, out, eps))
        self.pending = None

    def tap(self, name: str) -> None:
        """Let callers read what the next block would."""
        self._add_pending()
        self.program.tap(name, self.residual)

    def gather(self) -> Buffer:
        """Go on with the rows that want logits; returns their residual."""
        gathered = self._logit_rows(self.residual)
        if self.pending is not None:
            self.pending = self._logit_rows(self.pending)
        self.residual = gathered
        return gathered

    def _add_pending(self) -> None:
        if self.pending is not None:
            scale = self.config.residual_multiplier
            self.program.add(AddScaled(self.pending, self.residual, scale))
        self.pending = None

    def _logit_rows(self, source: Buffer) -> Buffer:
        name = f"head.{source.name}"
        gathered = self.program.buffer(name, Rows.LOGITS, source.width, source.dtype)
        self.program.add(GatherRows(source, gathered))
        return gathered


def _as_stored(multiplier: float, dtype: DType) -> float:
    """Rounded to the activations' dtype, as Gemma's published code does and was trained with."""
    return float(as_bf16(multiplier)) if dtype is DType.BF16 else float(np.float32(multiplier))


@dataclass(frozen=True, slots=True)
class LayerRecorder:
    """The two blocks of one layer."""

    program: Program
    config: DecoderConfig
    layer_idx: int
    dtype: DType

    def attend(self, stream: _Stream, kv: KVLayer, kv_scales: tuple[float, float] | None) -> None:
        config = self.config
        qkv = self.buffer("qkv", config.qkv_width)
        attention = self.buffer("attention", config.q_width)
        x = stream.enter(self.name("input_norm"))
        self.linear(x, "qkv", qkv, config.qkv_bias)
        self.rotate_and_store(qkv, kv, kv_scales)
        self.read_cache(qkv, attention, kv)
        self.linear(attention, "o", stream.delta, config.o_bias)
        stream.leave(self.name("post_attention_norm"))

    def feed_forward(self, stream: _Stream) -> None:
        x = stream.enter(self.name("mlp_norm"))
        if self.config.experts is None:
            self.dense_mlp(x, stream.delta)
        else:
            record_experts(self.program, self.config, self.layer_idx, x, stream.delta)
        stream.leave(self.name("post_mlp_norm"))

    def dense_mlp(self, x: Buffer, out: Buffer) -> None:
        config = self.config
        gate_up = self.buffer("gate_up", 2 * config.intermediate_size)
        mlp = self.buffer("mlp", config.intermediate_size)
        self.linear(x, "gate_up", gate_up, config.mlp_bias)
        self.program.add(ActMul(gate_up, mlp, config.activation))
        self.linear(mlp, "down", out, config.mlp_bias)

    def rotate_and_store(
        self, qkv: Buffer, kv: KVLayer, kv_scales: tuple[float, float] | None
    ) -> None:
        config = self.config
        if config.joint_qk_norm:
            self._joint_norms(qkv)
        self.program.add(
            RopeStoreKV(
                qkv=qkv,
                kv=kv,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                rope=config.rope_of(self.layer_idx),
                q_norm=self.name("q_norm") if config.qk_norm else None,
                k_norm=self.name("k_norm") if config.qk_norm else None,
                norm_eps=config.rms_norm_eps,
                kv_scales=kv_scales,
            )
        )

    def _joint_norms(self, qkv: Buffer) -> None:
        q, k = self.config.q_width, self.config.q_width + self.config.kv_width
        eps = self.config.rms_norm_eps
        self.program.add(NormColumns(qkv, self.name("q_norm"), 0, q, eps))
        self.program.add(NormColumns(qkv, self.name("k_norm"), q, k, eps))

    def read_cache(self, qkv: Buffer, out: Buffer, kv: KVLayer) -> None:
        config = self.config
        scale = config.attention_scale
        self.program.add(
            PagedAttention(
                qkv=qkv,
                out=out,
                kv=kv,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_size=config.head_size,
                scale=config.head_size**-0.5 if scale is None else scale,
                window=config.windows[self.layer_idx],
                softcap=config.attention_softcap,
            )
        )

    def linear(self, x: Buffer, weight: str, out: Buffer, has_bias: bool) -> None:
        bias = self.name(f"{weight}_bias") if has_bias else None
        self.program.add(Linear(x, self.name(weight), out, bias))

    def name(self, weight: str) -> WeightName:
        return layer_weight(self.layer_idx, weight)

    def buffer(self, name: str, width: int) -> Buffer:
        return self.program.shared_buffer(name, Rows.TOKENS, width, self.dtype)


def _record_head(stream: _Stream) -> None:
    program, config = stream.program, stream.config
    residual = stream.gather()
    normed = program.buffer("head.normed", Rows.LOGITS, config.hidden_size, residual.dtype)
    logits = program.buffer("logits", Rows.LOGITS, config.vocab_size, DType.F32)
    stream.record_norm(FINAL_NORM, residual, normed)
    program.add(Linear(normed, EMBED if config.tie_word_embeddings else LM_HEAD, logits))
    if config.logit_scale != 1.0 or config.logit_softcap is not None:
        program.add(ScaleLogits(logits, config.logit_scale, config.logit_softcap))
    program.add(Sample(logits))
