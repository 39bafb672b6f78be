"""config.json: every family's numbers, both spellings of rope, and refusals by field name."""

from __future__ import annotations

from typing import Any

import pytest
from hasten.core.loading import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.models import DecoderConfig
from hasten.core.models.rope import LinearScaling, Llama3Scaling, make_rope
from hasten.kernels.ops import Activation

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def values(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    base = {
        "architectures": [architecture],
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        **changes,
    }
    return {key: value for key, value in base.items() if value is not None}


def read(architecture: str = "LlamaForCausalLM", **changes: Any) -> DecoderConfig:
    return read_hf_config(Fields(values(architecture, **changes), "config.json"))


def test_llama() -> None:
    config = read()
    assert config.family == "llama"
    assert (config.head_size, config.num_kv_heads) == (16, 2)
    assert config.rope == make_rope(16, 10000.0)
    assert config.activation is Activation.SILU
    assert not any((config.qkv_bias, config.o_bias, config.mlp_bias, config.qk_norm))
    assert not config.tie_word_embeddings


def test_llama_with_biases_head_dim_and_no_grouping() -> None:
    config = read(attention_bias=True, mlp_bias=True, head_dim=32, num_key_value_heads=None)
    assert config.qkv_bias
    assert config.o_bias
    assert config.mlp_bias
    assert (config.head_size, config.num_kv_heads) == (32, 4)


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_linear_scaling_in_the_old_spelling(kind: str) -> None:
    config = read(rope_scaling={kind: "linear", "factor": 2.0})
    assert config.rope == make_rope(16, 10000.0, LinearScaling(2.0))


def test_llama3_scaling_in_both_spellings() -> None:
    expected = make_rope(16, 500000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert read(rope_theta=500000.0, rope_scaling=LLAMA3).rope == expected
    new = {**LLAMA3, "rope_theta": 500000.0}
    assert read(rope_theta=None, rope_parameters=new).rope == expected


def test_rope_parameters_win_over_a_left_over_rope_theta() -> None:
    config = read(rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    assert config.rope == make_rope(16, 100000.0)


def test_partial_rotation() -> None:
    assert read(partial_rotary_factor=0.5).rope.rotary_dim == 8


def test_mistral_windows_every_layer() -> None:
    assert read("MistralForCausalLM", sliding_window=32).windows == (32, 32, 32)
    assert read("MistralForCausalLM").windows == (None, None, None)


def test_qwen2_has_biases_and_windows_late_layers_when_asked() -> None:
    config = read("Qwen2ForCausalLM", sliding_window=32, use_sliding_window=False)
    assert config.qkv_bias
    assert not config.o_bias
    assert config.windows == (None, None, None)
    late = read("Qwen2ForCausalLM", sliding_window=32, use_sliding_window=True, max_window_layers=2)
    assert late.windows == (None, None, 32)


def test_qwen3_normalises_heads_and_lists_layer_types() -> None:
    types = ["full_attention", "sliding_attention", "full_attention"]
    config = read(
        "Qwen3ForCausalLM",
        head_dim=16,
        layer_types=types,
        sliding_window=8,
        use_sliding_window=True,
    )
    assert config.qk_norm
    assert not config.qkv_bias
    assert config.windows == (None, 8, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "field 'vocab_size' is missing"),
        ({"vocab_size": "many"}, "field 'vocab_size' must be an integer, got \"many\""),
        ({"hidden_size": True}, "field 'hidden_size' must be an integer"),
        ({"hidden_size": 66}, "'num_attention_heads' is 4 for hidden_size 66"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' must be from 1 to 4096"),
        ({"num_key_value_heads": 3}, "num_kv_heads must divide num_heads"),
        ({"rms_norm_eps": -1}, "field 'rms_norm_eps' must be a number above 0"),
        ({"hidden_act": "relu"}, "'hidden_act' is \"relu\", which is not supported"),
        ({"hidden_act": None}, "field 'hidden_act' is missing"),
        ({"head_dim": 15}, "rotary dimension must be even"),
        ({"architectures": ["GPT2LMHeadModel"]}, "'architectures' is .*GPT2LMHeadModel"),
        ({"architectures": "LlamaForCausalLM"}, "'architectures' must be a list"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "'rope_scaling.rope_type' is \"ntk\""),
        ({"rope_scaling": {"rope_type": "linear"}}, "'rope_scaling.factor' is missing"),
        ({"rope_parameters": {"full_attention": {}}}, "'rope_parameters.full_attention' is not"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "x": 1}}, "'rope_scaling.x' is not"),
        ({"use_mrope": True}, "'use_mrope' is true"),
        ({"rope_scaling": "linear"}, "field 'rope_scaling' must be an object"),
        ({"rope_parameters": {"rope_theta": "big"}}, "'rope_parameters.rope_theta' must be a"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' must be true or false"),
        ({"layer_types": ["full_attention"]}, "'layer_types' has 1 entries for 3"),
        ({"layer_types": ["sliding_attention"] * 3}, "'sliding_window' is missing"),
        ({"layer_types": ["linear_attention"] * 3}, "'layer_types' holds 'linear_attention'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        read(**changes)
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


def test_qwen3_needs_head_dim() -> None:
    with pytest.raises(LoadError, match="'head_dim' is missing"):
        read("Qwen3ForCausalLM")


def test_an_absent_rope_theta_is_the_familys_own_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    assert read(rope_theta=None).rope == make_rope(16, 10000.0)
    assert "rope_theta is absent" in caplog.text
