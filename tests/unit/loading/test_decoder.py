"""The recorded program: its ops in order, its weights, its KV groups; and the weights' specs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hasten.core.models import (
    DecoderConfig,
    KVFormat,
    build_program,
    kv_groups,
    kv_layers,
    weight_specs,
)
from hasten.core.models.rope import make_rope
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Linear, PagedAttention, RmsNorm, RopeStoreKV
from hasten.kernels.program import KVLayer, Program, Rows
from hasten.kernels.weights import Split

CONFIG = DecoderConfig(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope=make_rope(16, 1e4),
    windows=(None, None, None),
)


def record(config: DecoderConfig, dtype: DType) -> Program:
    return build_program(config, dtype, KVFormat.uniform(config, dtype))


VARIANTS = [
    CONFIG,
    replace(CONFIG, tie_word_embeddings=True),
    replace(CONFIG, qkv_bias=True, o_bias=True, mlp_bias=True),
    replace(CONFIG, qk_norm=True, windows=(None, 8, 8)),
]


@pytest.mark.parametrize("config", VARIANTS)
def test_the_program_reads_just_the_weights_of_the_specs(config: DecoderConfig) -> None:
    program = record(config, DType.BF16)
    assert set(program.weight_names()) == {spec.name for spec in weight_specs(config)}


def test_ops_in_order() -> None:
    program = record(CONFIG, DType.BF16)
    layer = "rms_norm linear rope_store_kv paged_attention linear rms_norm linear act_mul linear"
    body, head = program.split()
    assert [op.name for op in body] == ["embed", *(layer.split() * CONFIG.num_layers)]
    assert [op.name for op in head] == [*["gather_rows"] * 2, "rms_norm", "linear", "sample"]
    assert all(buffer.rows is Rows.TOKENS for op in body for buffer in (*op.reads(), *op.writes()))


def test_every_block_is_added_to_the_residual_once() -> None:
    norms = [op for op in record(CONFIG, DType.F32).ops if isinstance(op, RmsNorm)]
    assert norms[0].residual is None
    assert all(norm.residual is not None for norm in norms[1:])
    assert len(norms) == 2 * CONFIG.num_layers + 1


def test_logits_are_fp32_whatever_the_activations_are() -> None:
    program = record(CONFIG, DType.BF16)
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers}
    assert dtypes.pop("logits") is DType.F32
    assert set(dtypes.values()) == {DType.BF16}


def test_layers_share_their_buffers() -> None:
    few = record(replace(CONFIG, num_layers=1, windows=(None,)), DType.F32)
    many = record(CONFIG, DType.F32)
    assert len(few.buffers) == len(many.buffers)


def test_a_tied_head_reads_the_embedding() -> None:
    program = record(replace(CONFIG, tie_word_embeddings=True), DType.F32)
    head = [op for op in program.ops if isinstance(op, Linear)][-1]
    assert head.weight == "embed"


def test_one_kv_group_per_window() -> None:
    config = replace(CONFIG, windows=(8, None, 8))
    kv_format = KVFormat.uniform(config, DType.BF16)
    groups = kv_groups(config, kv_format)
    assert [(group.window, group.num_layers) for group in groups] == [(8, 2), (None, 1)]
    assert kv_layers(config, kv_format) == (KVLayer(0, 0), KVLayer(1, 0), KVLayer(0, 1))
    program = record(config, DType.BF16)
    attention = [op for op in program.ops if isinstance(op, PagedAttention)]
    assert [op.window for op in attention] == [8, None, 8]
    stores = [op for op in program.ops if isinstance(op, RopeStoreKV)]
    assert (
        [op.kv for op in stores]
        == [op.kv for op in attention]
        == list(kv_layers(config, kv_format))
    )


def test_how_weights_are_cut_over_devices() -> None:
    specs = list(weight_specs(replace(CONFIG, qkv_bias=True, o_bias=True)))
    splits = {spec.name.removeprefix("layers.0."): spec.split for spec in specs}
    assert splits["qkv"] is splits["qkv_bias"] is splits["gate_up"] is Split.COLUMN
    assert splits["o"] is splits["down"] is Split.ROW
    assert splits["o_bias"] is splits["input_norm"] is splits["embed"] is Split.REPLICATED
    assert splits["lm_head"] is Split.COLUMN


def test_every_tensor_belongs_to_one_weight() -> None:
    parts = Counter(part.key for spec in weight_specs(CONFIG) for part in spec.parts)
    assert set(parts.values()) == {1}
    assert parts["model.layers.2.mlp.up_proj.weight"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be at least 1"),
        ({"num_kv_heads": 3}, "must divide num_heads"),
        ({"rope": make_rope(32, 1e4)}, "exceeds head_size"),
        ({"windows": (None,)}, "1 attention windows for 3 layers"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]  # wrong on purpose
