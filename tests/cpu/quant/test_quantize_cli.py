"""`hasten quantize` on models of several families, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hasten.api.cli.main import main
from hasten.core.loading import load_model
from hasten.core.models import weight_specs
from hasten.kernels.weights import DenseWeight
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.helpers.tiny_models import save_tiny_model

WORDS = {f"w{idx}": idx for idx in range(20)}
SIZES = ("--num-sequences", "3", "--sequence-len", "24")


def save_model(family: str, folder: Path) -> None:
    save_tiny_model(family, folder)
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.decoder = ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text.txt").write_text(" ".join(f"w{idx * 7 % 20}" for idx in range(200)))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["quantize", *arguments, *SIZES])


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        ("llama", "int4-awq"),
        ("llama-biases", "int4-awq"),
        ("qwen2", "int4-gptq"),
        ("qwen3", "fp8"),
        ("mistral-window", "int4-rtn"),
    ],
)
def test_families(tmp_path: Path, family: str, scheme: str) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    save_model(family, source)
    text = str(source / "text.txt")
    done = run(str(source), str(out), "--scheme", scheme, "--calibration", text)
    assert done.exit_code == 0, done.output
    assert "layer error" in done.output
    before, after = load_model(str(source)), load_model(str(out))
    assert after.config == before.config
    for spec in weight_specs(after.config):
        assert isinstance(after.weights[spec.name], DenseWeight) != spec.quantizable
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    original = json.loads((source / "config.json").read_text())
    assert original.items() <= json.loads((out / "config.json").read_text()).items()


def test_text_that_the_model_writes(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    save_model("llama", source)
    done = run(str(source), str(out), "--scheme", "int8")
    assert done.exit_code == 0, done.output
    assert json.loads((out / "quantize_report.json").read_text())["num_calibration_tokens"] == 72


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("smollm2", (), "no group size of 32, 64, 128 divides the model's 72, 96 inputs"),
        ("llama", ("--group-size", "64"), "possible: 32"),
        ("llama", ("--kv-cache", "fp8-static"), "AutoAWQ's format holds no cache scales"),
        ("llama", ("--calibration", "no/such"), "no such file"),
        ("llama", ("--num-sequences", "50"), "need 1200: lower --num-sequences"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    tmp_path: Path, family: str, arguments: tuple[str, ...], message: str
) -> None:
    source = tmp_path / "source"
    save_model(family, source)
    text = ("--calibration", str(source / "text.txt"))
    command = ["quantize", str(source), str(tmp_path / "out"), *SIZES, *text, *arguments]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
