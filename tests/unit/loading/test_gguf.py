"""GGUF models: configuration from metadata, names and row order of tensors, refusals by name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hasten.core.loading import LoadError, load_model, read_model_info
from hasten.core.loading.gguf_file import open_gguf
from hasten.core.loading.gguf_names import TensorNames
from hasten.core.models.rope import Llama3Scaling, make_rope
from hasten.kernels.program import WeightName
from hasten.kernels.weights import DenseWeight, GroupedIntWeight
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.gguf_files import (
    HEAD_SIZE,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MLP,
    VOCAB,
    TinyGGUF,
    write_gguf,
)
from tests.helpers.random_models import tiny_config

Q4_0, Q4_1 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1
Q5_0, Q8_0 = GGMLQuantizationType.Q5_0, GGMLQuantizationType.Q8_0
F16, F32 = GGMLQuantizationType.F16, GGMLQuantizationType.F32
BF16 = GGMLQuantizationType.BF16


@pytest.mark.parametrize("tensor_type", [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q8_0])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_weights_are_the_dequantised_ones_in_our_order(
    tmp_path: Path, family: str, tensor_type: GGMLQuantizationType
) -> None:
    path = tmp_path / "tiny.gguf"
    spec = TinyGGUF(family, tensor_type, qkv_bias=family != "qwen3", qk_norm=family == "qwen3")
    expected = write_gguf(path, spec)
    weights = load_model(str(path)).weights

    def ours(name: str) -> Any:
        return weights[WeightName(name)].dequantize()

    assert np.array_equal(ours("embed"), expected["token_embd.weight"])
    assert np.array_equal(ours("lm_head"), expected["output.weight"])
    assert np.array_equal(ours("final_norm"), expected["output_norm.weight"])
    for idx in range(LAYERS):
        qkv = [expected[f"blk.{idx}.attn_{part}.weight"] for part in "qkv"]
        gate_up = [expected[f"blk.{idx}.ffn_{part}.weight"] for part in ("gate", "up")]
        assert np.array_equal(ours(f"layers.{idx}.qkv"), np.concatenate(qkv))
        assert np.array_equal(ours(f"layers.{idx}.gate_up"), np.concatenate(gate_up))
        assert np.array_equal(ours(f"layers.{idx}.down"), expected[f"blk.{idx}.ffn_down.weight"])
        if spec.qkv_bias:
            bias = [expected[f"blk.{idx}.attn_{part}.bias"] for part in "qkv"]
            assert np.array_equal(ours(f"layers.{idx}.qkv_bias"), np.concatenate(bias))
        if spec.qk_norm:
            q_norm = expected[f"blk.{idx}.attn_q_norm.weight"]
            assert np.array_equal(ours(f"layers.{idx}.q_norm"), q_norm)


@pytest.mark.parametrize(("tensor_type", "bits"), [(Q4_0, 4), (Q4_1, 4), (Q8_0, 8)])
def test_block_types_stay_packed(
    tmp_path: Path, tensor_type: GGMLQuantizationType, bits: int
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TinyGGUF(tensor_type=tensor_type))
    for name in ("embed", "layers.1.qkv", "layers.0.gate_up", "layers.0.o"):
        weight = load_model(str(path)).weights[WeightName(name)]
        assert isinstance(weight, GroupedIntWeight)
        assert weight.bits == bits


def test_configuration_of_a_llama(tmp_path: Path) -> None:
    path = tmp_path / "some-model.gguf"
    write_gguf(path, TinyGGUF(tied=True, metadata={"llama.rope.freq_base": 500000.0}))
    info = read_model_info(str(path))
    config = info.config
    assert info.name == "some-model"
    assert info.eos_token_ids == (2,)
    assert config.family == "llama"
    assert config.tie_word_embeddings
    assert (config.hidden_size, config.intermediate_size) == (HIDDEN, MLP)
    assert (config.vocab_size, config.num_layers) == (VOCAB, LAYERS)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (HEADS, KV_HEADS, HEAD_SIZE)
    assert config.rope == make_rope(HEAD_SIZE, 500000.0)
    assert config.windows == (None,) * LAYERS
    assert not config.qkv_bias
    assert not config.qk_norm


def test_rope_factors_stretch_frequencies_as_llama3_does(tmp_path: Path) -> None:
    scaled = make_rope(HEAD_SIZE, 10000.0, Llama3Scaling(8.0, 1.0, 4.0, 64))
    plain = make_rope(HEAD_SIZE, 10000.0)
    factors = np.divide(plain.inv_freq, scaled.inv_freq).astype(np.float32)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TinyGGUF(tensors={"rope_freqs.weight": factors}))
    assert read_model_info(str(path)).config.rope.inv_freq == pytest.approx(scaled.inv_freq, 1e-6)
    assert load_model(str(path))


@pytest.mark.parametrize("kind", ["linear", None])
def test_linear_scaling_and_window(tmp_path: Path, kind: str | None) -> None:
    path = tmp_path / "tiny.gguf"
    values = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": 4.0,
        "llama.attention.sliding_window": 32,
    }
    write_gguf(path, TinyGGUF(metadata=values))
    config = read_model_info(str(path)).config
    assert config.rope.inv_freq[0] == 0.25
    assert config.windows == (32,) * LAYERS


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": None}, "field 'llama.block_count' is missing"),
        ({"llama.block_count": "two"}, "field 'llama.block_count' must be an integer"),
        ({"llama.block_count": 3}, r"tensor 'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 2**32 - 1}, "must be from 1 to 4096, got 4294967295"),
        ({"llama.attention.key_length": 2**31}, "must be from 1 to 4096"),
        ({"llama.block_count": 1}, r"tensor 'blk.1.\S+' is not part of this architecture"),
        ({"llama.embedding_length": 63}, "is 4 for embeddings of 63"),
        ({"llama.feed_forward_length": 95}, r"tensor 'blk.0.ffn_gate.weight' has shape \[96, 64\]"),
        ({"llama.attention.head_count_kv": 3}, "num_kv_heads must divide num_heads"),
        ({"llama.rope.scaling.type": "longrope"}, "'llama.rope.scaling.type' is \"longrope\""),
        ({"split.count": 3}, "'split.count' is 3, which is not supported"),
        ({"llama.logit_scale": 0.5}, "'llama.logit_scale' is present"),
        ({"llama.attention.causal": False}, "'llama.attention.causal' is false"),
        ({"llama.expert_count": 8}, "field 'llama.expert_used_count' is missing"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "must be a number above 0"),
        ({"llama.rope.freq_base": float("nan")}, "must be a number above 0"),
        ({"llama.rope.dimension_count": 18}, "must be from 1 to 16, got 18"),
        ({"general.alignment": 24}, "power of two"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, TinyGGUF(metadata=metadata))
    with pytest.raises(LoadError, match=message) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, TinyGGUF(family="mamba"))
    with pytest.raises(LoadError, match=r"'general.architecture' is 'mamba'.*llama, qwen2, qwen3"):
        load_model(str(path))


def test_surplus_and_missing_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, TinyGGUF(tensors={"blk.0.extra.weight": np.zeros((4, 32), np.float32)}))
    with pytest.raises(LoadError, match=r"'blk.0.extra.weight' is not part"):
        load_model(str(path))
    write_gguf(path, TinyGGUF(tensors={"blk.1.attn_k.weight": None}))
    with pytest.raises(LoadError, match=r"'blk.1.attn_k.weight' is missing"):
        load_model(str(path))
    write_gguf(path, TinyGGUF(tensors={"token_embd.weight": None}))
    with pytest.raises(LoadError, match=r"'token_embd.weight' is missing"):
        load_model(str(path))


def test_types_nobody_dequantises_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path)
    content = bytearray(path.read_bytes())
    name = b"token_embd.weight"
    type_at = content.index(name) + len(name) + 4 + 16
    content[type_at : type_at + 4] = int(GGMLQuantizationType.I32).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"'token_embd.weight': type I32 is not supported"):
        load_model(str(path))


def test_a_damaged_scale_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path, TinyGGUF(tensor_type=Q8_0))
    content = bytearray(path.read_bytes())
    raw = open_gguf(path).tensors["blk.1.ffn_down.weight"].raw
    at = content.index(raw[0].tobytes())
    content[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"'blk.1.ffn_down.weight': a block scale is not finite"):
        load_model(str(path))


def test_norms_do_not_keep_the_file_mapped(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, TinyGGUF(tensor_type=Q8_0))
    for weight in load_model(str(path)).weights.values():
        if isinstance(weight, DenseWeight):
            assert weight.data.base is None or weight.data.base.size == weight.data.size


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.11.attn_q.bias", "model.layers.11.self_attn.q_proj.bias"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.01.ffn_norm.weight", "blk.01.ffn_norm.weight"),
        ("mystery", "mystery"),
    ],
)
def test_names_translate_both_ways(name: str, key: str) -> None:
    names = TensorNames.of(tiny_config())
    assert list(names.checkpoint_keys(name, 0)) == [key]
    assert names.gguf_name(key) == name


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_header_loads_or_is_one_error(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "tiny.gguf"
    if not path.exists():
        write_gguf(path, TinyGGUF(tensor_type=Q4_1))
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, 4500))] = data.draw(st.integers(0, 255))
    other = tmp_path / "damaged.gguf"
    other.write_bytes(damaged)
    with contextlib.suppress(LoadError):
        load_model(str(other))
