"""Model directories: what belongs together, what is left out, and what is refused by name."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hasten.core.loading import LoadError, load_model, read_model_info
from hasten.core.loading.fields import read_json
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.models import weight_specs
from hasten.kernels.program import WeightName
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def save_model(folder: Path, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """A directory with random weights; `tensors` replace or add some, None leaves one out."""
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **(config or {})}))
    random = np.random.default_rng(0)
    made: dict[str, Any] = {
        part.key: random.standard_normal(part.shape).astype(np.float32)
        for spec in weight_specs(read_hf_config(read_json(path)))
        for part in spec.parts
    }
    made.update(tensors)
    kept = {key: value for key, value in made.items() if value is not None}
    save_file(kept, folder / "model.safetensors")
    return folder


def test_parts_are_stacked_in_order(tmp_path: Path) -> None:
    model = load_model(str(save_model(tmp_path)))
    qkv = model.weights[WeightName("layers.1.qkv")].dequantize()
    assert qkv.shape == (96, 32)
    key = "model.layers.1.self_attn.k_proj.weight"
    k = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    changed = load_model(str(save_model(tmp_path, None, **{key: k})))
    assert np.array_equal(changed.weights[WeightName("layers.1.qkv")].dequantize()[32:64], k)
    assert changed.content_hash != model.content_hash


def test_a_lone_matrix_stays_mapped(tmp_path: Path) -> None:
    weight = load_model(str(save_model(tmp_path))).weights[WeightName("layers.0.down")]
    base: Any = weight
    base = base.data
    while getattr(base, "base", None) is not None:
        base = base.base
    assert isinstance(base, memoryview)
    assert isinstance(base.obj, mmap.mmap)


@pytest.mark.parametrize("eos", [5, [5, 7]])
def test_generation_config_wins_and_gives_defaults(tmp_path: Path, eos: Any) -> None:
    folder = save_model(tmp_path)
    assert read_model_info(str(folder)).eos_token_ids == (2,)
    values = {"eos_token_id": eos, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(values))
    info = read_model_info(str(folder))
    assert info.eos_token_ids == ((5,) if eos == 5 else (5, 7))
    assert info.generation_defaults == {"temperature": 0.6, "top_k": 20, "top_p": 0.9}


def test_end_tokens_outside_the_vocabulary_are_dropped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_model(tmp_path, {"eos_token_id": [2, 99]})
    assert read_model_info(str(folder)).eos_token_ids == (2,)
    assert "99" in caplog.text


def test_old_rotary_buffers_are_left_out(tmp_path: Path) -> None:
    buffers = {
        f"model.layers.{idx}.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)
        for idx in range(2)
    }
    assert load_model(str(save_model(tmp_path, None, **buffers)))


def test_a_tied_head_may_be_stored_again_but_not_differently(tmp_path: Path) -> None:
    table = np.ones((32, 32), np.float32)
    tied = {"tie_word_embeddings": True}
    both = {"model.embed_tokens.weight": table, "lm_head.weight": table.copy()}
    model = load_model(str(save_model(tmp_path, tied, **both)))
    assert WeightName("lm_head") not in model.weights
    with pytest.raises(LoadError, match=r"'lm_head\.weight' differs from the embedding"):
        load_model(str(save_model(tmp_path, tied, **{**both, "lm_head.weight": 2 * table})))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.norm.weight", None, r"tensor 'model\.norm\.weight' is missing"),
        ("model.norm.weight", np.ones(31, np.float32), r"has shape \[31\], .*asks for \[32\]"),
        ("model.extra", np.ones(1, np.float32), r"'model\.extra' is not part of this"),
        ("lm_head.weight", np.ones((32, 32), np.int32), "dtype I32, which is not supported"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load_model(str(save_model(tmp_path, None, **{key: value})))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "not valid JSON"),
        ("config.json", "[1]", "holds list, not a JSON object"),
        ("config.json", "[" * 100_000, "not valid JSON"),
        ("config.json", "\x00\xff", "not valid JSON"),
        ("generation_config.json", '{"top_k": "all"}', "field 'top_k' must be an integer"),
        ("generation_config.json", '{"eos_token_id": "</s>"}', "field 'eos_token_id' must be"),
        ("generation_config.json", '{"top_p": 0}', "field 'top_p' must be from"),
        ("generation_config.json", '{"temperature": NaN}', "field 'temperature' must be"),
    ],
)
def test_wrong_json_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = save_model(tmp_path)
    (folder / name).write_text(content, encoding="latin-1")
    with pytest.raises(LoadError, match=message) as caught:
        load_model(str(folder))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"config\.json: No such file"):
        load_model(str(tmp_path))
