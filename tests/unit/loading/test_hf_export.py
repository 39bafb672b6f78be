"""Configurations written as config.json are read back as they were, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hasten.core.loading import LoadError, load_model
from hasten.core.loading.fields import Fields
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.loading.hf_export import export_config
from hasten.core.models import DecoderConfig
from hasten.core.models.rope import LinearScaling, make_rope

CONFIG = DecoderConfig(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope=make_rope(16, 10_000.0),
    windows=(None, None, None),
)


def read(exported: dict[str, object]) -> DecoderConfig:
    return read_hf_config(Fields(exported, "config.json"))


@pytest.mark.parametrize("theta", [10_000.0, 100_000.0, 500_000.0, 1_000_000.0, 12_345.0])
@pytest.mark.parametrize("head_size", [16, 64, 128])
def test_the_rotary_base_is_found_again(theta: float, head_size: int) -> None:
    config = replace(
        CONFIG, head_size=head_size, hidden_size=4 * head_size, rope=make_rope(head_size, theta)
    )
    exported = export_config(config, (2,))
    assert exported["rope_theta"] == theta
    assert read(exported) == config


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"qkv_bias": True, "o_bias": True},
        {"mlp_bias": True},
        {"family": "qwen2", "qkv_bias": True},
        {"family": "qwen3", "qk_norm": True},
    ],
)
def test_families_and_flags(changes: dict[str, object]) -> None:
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]  # fields by name
    assert read(export_config(config, (2, 3))) == config


def test_a_llama_with_a_window_is_called_mistral() -> None:
    config = replace(CONFIG, windows=(32, 32, 32))
    assert read(export_config(config, ())) == replace(config, family="mistral")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope": make_rope(16, 10_000.0, LinearScaling(4.0))}, "rotary frequencies"),
        ({"rope": make_rope(8, 10_000.0)}, "only part of a head"),
        ({"windows": (32, None, 32)}, "windows"),
        ({"family": "qwen2"}, "qkv_bias"),
    ],
)
def test_what_cannot_be_said_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        export_config(replace(CONFIG, **changes), ())  # type: ignore[arg-type]  # fields by name


def test_the_embedded_model_can_be_said() -> None:
    model = load_model("embedded")
    assert export_config(model.config, model.eos_token_ids)["rope_theta"] == 100_000.0
