"""`hasten serve` on models that are damaged or not understood: one line, exit code 2."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hasten.core.loading import LoadError, locate_model
from safetensors.numpy import load_file, save_file

from tests.helpers.tiny_models import save_tiny_model

UP = "model.layers.1.mlp.up_proj.weight"


def serve(model: Path, *flags: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on standard error."""
    command = [sys.executable, "-m", "hasten.api.cli", "serve", str(model), "--port", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr.strip().splitlines()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokeniser that loads: the model is read after it."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    vocab = {token: idx for idx, token in enumerate("abcdefghijklmnopqrst")}
    model = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "a"}
    flags = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bytes_to_text = {"type": "ByteLevel", **flags}
    content = {"model": model, "added_tokens": [], "pre_tokenizer": bytes_to_text}
    path.write_text(json.dumps({**content, "decoder": bytes_to_text}))
    return path


def unknown_rope(folder: Path) -> None:
    path = folder / "config.json"
    rope = {"rope_type": "spiral", "rope_theta": 1e4}
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_parameters": rope}))


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[UP]
    save_file(tensors, folder / "model.safetensors")


def surplus_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.extra.weight"] = np.zeros((2, 2), np.float32)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unknown_rope, "'rope_parameters.rope_type' is \"spiral\", which is not supported"),
        (missing_tensor, f"tensor '{UP}' is missing"),
        (surplus_tensor, "tensor 'model.layers.1.mlp.extra.weight' is not part of this"),
    ],
)
def test_a_directory(
    damage: Callable[[Path], None], message: str, tokenizer: Path, tmp_path: Path
) -> None:
    save_tiny_model("llama", tmp_path)
    damage(tmp_path)
    code, lines = serve(tmp_path, "--tokenizer", str(tokenizer))
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]


def test_half_a_gguf_file(tmp_path: Path) -> None:
    try:
        whole = locate_model("embedded").path.read_bytes()
    except LoadError as error:
        pytest.skip(str(error))
    path = tmp_path / "half.gguf"
    path.write_bytes(whole[: len(whole) // 2])
    code, lines = serve(path)
    assert code == 2
    assert len(lines) == 1
    assert "truncated: tensor" in lines[0]
