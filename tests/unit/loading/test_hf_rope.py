"""Rotary scalings in config.json: which set serves, what is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest
from hasten.core.loading import LoadError
from hasten.core.loading.fields import Fields
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.models import DecoderConfig
from hasten.core.models.rope import (
    LongRopeScaling,
    YarnScaling,
    make_rope,
    yarn_attention_factor,
)

LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def read(
    architecture: str = "LlamaForCausalLM", max_model_len: int | None = None, **changes: Any
) -> DecoderConfig:
    values = {
        "architectures": [architecture],
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        **changes,
    }
    return read_hf_config(Fields(values, "config.json"), max_model_len)


@pytest.mark.parametrize("kind", ["longrope", "su"])
@pytest.mark.parametrize(("max_model_len", "factor"), [(None, 4.0), (129, 4.0), (128, 1.0)])
def test_one_set_of_long_rope_factors_serves_all_requests(
    kind: str, max_model_len: int | None, factor: float
) -> None:
    config = read("Phi3ForCausalLM", max_model_len, rope_scaling={**LONG, "rope_type": kind})
    scale = config.rope.scale
    assert scale == pytest.approx((1 + 2 / 7) ** 0.5)  # ln 4 / ln 128
    assert config.rope == make_rope(16, 10000.0, LongRopeScaling((factor,) * 8, scale))


def test_dynamic_scaling_changes_nothing_up_to_the_bound() -> None:
    config = read(rope_scaling={"rope_type": "dynamic", "factor": 8.0})
    assert config.rope == make_rope(16, 10000.0)


def test_yarn_with_and_without_details() -> None:
    plain = YarnScaling(4.0, 128, yarn_attention_factor(4.0))
    assert read(rope_scaling=YARN).rope == make_rope(16, 10000.0, plain)
    told = {**YARN, "attention_factor": 1.5, "beta_fast": 8, "beta_slow": 2, "truncate": False}
    expected = YarnScaling(4.0, 128, 1.5, 8.0, 2.0, truncate=False)
    assert read(rope_scaling=told).rope == make_rope(16, 10000.0, expected)


def test_part_of_a_head_is_rotated() -> None:
    assert read(partial_rotary_factor=0.5).rope == make_rope(8, 10000.0)


@pytest.mark.parametrize("fields", [{}, {"rope_local_base_freq": 500.0}])
def test_layers_with_a_window_have_a_base_of_their_own(fields: dict[str, Any]) -> None:
    config = read(
        "Gemma3ForCausalLM",
        head_dim=16,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=16,
        sliding_window=8,
        sliding_window_pattern=2,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        **fields,
    )
    assert config.windows == (8, None, 8, None)
    assert config.rope_of(0) == make_rope(16, fields.get("rope_local_base_freq", 10000.0))
    assert config.rope_of(1).inv_freq[0] == 1 / 8


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "spiral"}, "'rope_scaling.rope_type' is \"spiral\""),
        ({**YARN, "factor": None}, "'rope_scaling.factor' is missing"),
        ({**YARN, "short_factor": [1.0]}, "'rope_scaling.short_factor' is not supported"),
        ({**LONG, "long_factor": [1.0] * 7}, "7 rotary factors for 8 frequencies"),
        ({**LONG, "long_factor": [1.0] * 7 + [0.0]}, "'rope_scaling.long_factor.7' must be a"),
        ({**LONG, "long_factor": 2.0}, "'rope_scaling.long_factor' must be a list of numbers"),
    ],
)
def test_what_is_wrong_is_named(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read("Phi3ForCausalLM", rope_scaling=scaling)
