"""What the tools write on the embedded model, by `hasten quantize --backend`, served by us."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.api.text.tokenizer import load_tokenizer
from hasten.core.build import build_engine
from hasten.core.options import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions
from hasten.core.params import GenerationParams
from hasten.core.quantize.tools import ToolEnvironment

from tests.helpers.engines import ask, run_requests

CASES = [
    ("autoawq", "int4-awq", ()),
    ("optimum", "int4-gptq", ()),
    ("llmcompressor", "int4-awq", ()),
    ("llmcompressor", "int4-gptq", ()),
    ("llmcompressor", "int4-rtn", ()),
    ("llmcompressor", "int8", ()),
    ("llmcompressor", "fp8", ()),
    ("llmcompressor", "fp8", ("--activations", "static", "--kv-cache", "fp8-static")),
]
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.timeout(3600)  # AutoAWQ alone takes a quarter of an hour of one core
@pytest.mark.parametrize(
    ("backend", "scheme", "more"), CASES, ids=[" ".join((b, s, *m)) for b, s, m in CASES]
)
def test_it_answers_sensibly(
    tmp_path: Path,
    backend: str,
    scheme: str,
    more: tuple[str, ...],
    environment_of: Callable[[str], ToolEnvironment],
) -> None:
    environment, out = environment_of(backend), tmp_path / "out"
    arguments = ["quantize", "embedded", str(out), "--backend", backend, "--scheme", scheme, *more]
    arguments += ["--environment", str(environment.folder)]
    arguments += ["--num-sequences", "8", "--sequence-len", "256"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    layers = json.loads((out / "quantize_report.json").read_text())["layers"]
    assert len(layers) == 30
    assert max(layer["relative_error"] for layer in layers) < 0.6
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    assert len(json.dumps(config)) < 10_000, "calibration texts do not belong there"
    assert "Paris" in answer(out)


def answer(folder: Path) -> str:
    engine = build_engine(
        EngineOptions(
            model=ModelOptions(model=str(folder), max_model_len=128),
            cache=CacheOptions(kv_cache_memory_bytes=32 * 2**20),
            scheduler=SchedulerOptions(max_num_seqs=1, max_num_batched_tokens=128),
        )
    )
    tokenizer = load_tokenizer(str(folder))
    params = GenerationParams(max_tokens=24, seed=0, temperature=0.0)
    answers = run_requests(engine, [ask("a", tokenizer.encode(QUESTION), params)])
    return tokenizer.decode(list(answers["a", 0].token_ids))
