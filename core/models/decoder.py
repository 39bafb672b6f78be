"""The decoder, recorded once as a step program: Llama, SmolLM2, Mistral, Qwen2 and Qwen3.

What tells the families apart is data (`DecoderConfig`), so there is one recording for all:

    embed -> residual
    each layer:  norm -> qkv -> rope, store K and V -> attention -> o
                 residual += o, norm -> gate_up -> act_mul -> down      (added by the next norm)
    rows that want logits:  gather -> residual += down, norm -> lm_head -> sample

Activations live in a handful of buffers that all layers share. Exercised by
`pytest tests/unit/loading/test_decoder.py tests/cpu/models`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.models.config import DecoderConfig
from hasten.core.models.kv import KVFormat, kv_groups, kv_layers
from hasten.core.models.weights import EMBED, FINAL_NORM, LM_HEAD, layer_weight
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import (
    ActMul,
    Embed,
    GatherRows,
    Linear,
    PagedAttention,
    RmsNorm,
    RopeStoreKV,
    Sample,
)
from hasten.kernels.program import (
    Buffer,
    Program,
    Rows,
    WeightName,
)


def build_program(config: DecoderConfig, activation_dtype: DType, kv_format: KVFormat) -> Program:
    """Record the whole step, from token ids to sampled tokens."""
    program = Program(config.vocab_size, kv_groups(config, kv_format))
    buffers = _Buffers.declare(program, config, activation_dtype)
    program.add(Embed(EMBED, buffers.residual))
    for layer_idx in range(config.num_layers):
        _record_layer(program, config, buffers, layer_idx, kv_format)
    _record_head(program, config, buffers)
    return program


@dataclass(frozen=True, slots=True)
class _Buffers:
    """The activations that every layer overwrites, all [T, width]."""

    residual: Buffer
    delta: Buffer  # what the last block adds to the residual; the next norm adds it
    normed: Buffer
    qkv: Buffer
    attention: Buffer
    gate_up: Buffer
    mlp: Buffer

    @classmethod
    def declare(cls, program: Program, config: DecoderConfig, dtype: DType) -> _Buffers:
        def tokens(name: str, width: int) -> Buffer:
            return program.buffer(name, Rows.TOKENS, width, dtype)

        return cls(
            residual=tokens("residual", config.hidden_size),
            delta=tokens("delta", config.hidden_size),
            normed=tokens("normed", config.hidden_size),
            qkv=tokens("qkv", config.q_width + 2 * config.kv_width),
            attention=tokens("attention", config.q_width),
            gate_up=tokens("gate_up", 2 * config.intermediate_size),
            mlp=tokens("mlp", config.intermediate_size),
        )


def _record_layer(
    program: Program, config: DecoderConfig, buffers: _Buffers, layer_idx: int, kv_format: KVFormat
) -> None:
    def name(weight: str) -> WeightName:
        return layer_weight(layer_idx, weight)

    def linear(x: Buffer, weight: str, out: Buffer, has_bias: bool) -> None:
        bias = name(f"{weight}_bias") if has_bias else None
        program.add(Linear(x, name(weight), out, bias))

    eps = config.rms_norm_eps
    if layer_idx == 0:
        program.add(RmsNorm(buffers.residual, name("input_norm"), buffers.normed, eps))
    else:
        program.add(_add_norm(buffers, name("input_norm"), eps))
    linear(buffers.normed, "qkv", buffers.qkv, config.qkv_bias)
    _record_attention(program, config, buffers, layer_idx, kv_format)
    linear(buffers.attention, "o", buffers.delta, config.o_bias)
    program.add(_add_norm(buffers, name("post_attention_norm"), eps))
    linear(buffers.normed, "gate_up", buffers.gate_up, config.mlp_bias)
    program.add(ActMul(buffers.gate_up, buffers.mlp, config.activation))
    linear(buffers.mlp, "down", buffers.delta, config.mlp_bias)


def _add_norm(buffers: _Buffers, weight: WeightName, eps: float) -> RmsNorm:
    return RmsNorm(buffers.delta, weight, buffers.normed, eps, residual=buffers.residual)


def _record_attention(
    program: Program, config: DecoderConfig, buffers: _Buffers, layer_idx: int, kv_format: KVFormat
) -> None:
    kv = kv_layers(config, kv_format)[layer_idx]
    program.add(
        RopeStoreKV(
            qkv=buffers.qkv,
            kv=kv,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            rope=config.rope,
            q_norm=layer_weight(layer_idx, "q_norm") if config.qk_norm else None,
            k_norm=layer_weight(layer_idx, "k_norm") if config.qk_norm else None,
            norm_eps=config.rms_norm_eps,
            kv_scales=kv_format.scales.get(layer_idx),
        )
    )
    program.add(
        PagedAttention(
            qkv=buffers.qkv,
            out=buffers.attention,
            kv=kv,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            scale=config.head_size**-0.5,
            window=config.windows[layer_idx],
        )
    )


def _record_head(program: Program, config: DecoderConfig, buffers: _Buffers) -> None:
    dtype = buffers.residual.dtype
    residual = program.buffer("head.residual", Rows.LOGITS, config.hidden_size, dtype)
    delta = program.buffer("head.delta", Rows.LOGITS, config.hidden_size, dtype)
    normed = program.buffer("head.normed", Rows.LOGITS, config.hidden_size, dtype)
    logits = program.buffer("logits", Rows.LOGITS, config.vocab_size, DType.F32)
    program.add(GatherRows(buffers.residual, residual))
    program.add(GatherRows(buffers.delta, delta))
    program.add(RmsNorm(delta, FINAL_NORM, normed, config.rms_norm_eps, residual=residual))
    program.add(Linear(normed, EMBED if config.tie_word_embeddings else LM_HEAD, logits))
    program.add(Sample(logits))
