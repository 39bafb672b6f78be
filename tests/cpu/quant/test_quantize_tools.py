"""`hasten quantize --backend TOOL`, with a driver of ours in the place of a tool.

What the tools themselves write is tested in `tests/interop`, where they can be installed.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.core.loading import load_model
from hasten.core.options import ConfigurationError
from hasten.core.quantize import QuantizeOptions, quantize_model
from hasten.core.quantize.options import BACKENDS
from hasten.core.quantize.tools import TOOLS, Tool, ToolEnvironment, quantize_with_tool
from hasten.core.quantize.tools.run import DRIVERS
from hasten.kernels.weights import GroupedIntWeight

from tests.helpers.tiny_models import save_tiny_model

IDS = np.random.default_rng(3).integers(0, 20, (2, 24)).astype(np.int32)
OPTIONS = QuantizeOptions(
    scheme="int4-awq", backend="autoawq", num_sequences=len(IDS), sequence_len=IDS.shape[1]
)
DRIVER = """
import json, os, shutil, sys
sys.path.insert(0, {drivers!r})
from protocol import run_job

def quantize(job, progress):
    print("a tool talks")
    told = dict(group_size=job.group_size, scheme=job.scheme, token_ids=job.token_ids)
    told["variables"] = sorted(name for name in os.environ if name.startswith(("PYTHON", "HF_")))
    with open({told!r}, "w") as file:
        json.dump(told, file)
    for num_layers in (1, 1, 2, 3):
        progress.finished(num_layers)
    if {fails!r}:
        raise RuntimeError("no such luck")
    shutil.copytree({made!r}, job.out)

run_job(quantize)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    save_tiny_model("llama", tmp_path / "source", dtype=torch.bfloat16)
    return tmp_path / "source"


def environment(folder: Path, tool: Tool) -> ToolEnvironment:
    """This process's, as one that the user names."""
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return ToolEnvironment.locate(tool, folder / "environment")


def tool_that_copies(folder: Path, made: Path, *, fails: bool = False) -> Tool:
    driver = folder / "driver.py"
    told = str(folder / "told.json")
    driver.write_text(DRIVER.format(drivers=str(DRIVERS), told=told, fails=fails, made=str(made)))
    return Tool("numpy", str(driver), ())


def test_a_tools_work_is_followed_loaded_and_reported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    made, out = tmp_path / "made", tmp_path / "out"
    quantize_model(str(source), made, replace(OPTIONS, backend="native"), IDS)
    there = environment(tmp_path, tool_that_copies(tmp_path, made))
    there.ensure(lambda _: pytest.fail("nothing is to be installed"))
    seen: list[int] = []
    report = quantize_with_tool(source, out, OPTIONS, IDS, there, seen.append)
    assert seen == [1, 2, 3]
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["group_size"], told["scheme"]) == (32, "int4-awq")
    assert told["token_ids"] == IDS.tolist()
    assert told["variables"] == ["HF_HUB_OFFLINE"]
    assert report is not None
    own = json.loads((made / "quantize_report.json").read_text())
    assert report.group_size == 32
    assert report.bf16_bytes == own["bf16_bytes"]
    found = [layer.relative_error for layer in report.layers]
    assert found == pytest.approx([layer["relative_error"] for layer in own["layers"]], rel=1e-3)
    assert json.loads((out / "quantize_report.json").read_text())["scheme"] == "int4-awq"
    assert isinstance(load_model(str(out)).weights["layers.0.o"], GroupedIntWeight)  # type: ignore[index]  # names are strings
    assert {path.name for path in tmp_path.glob("out*")} == {"out"}
    with pytest.raises(ConfigurationError, match="exists already"):
        quantize_with_tool(source, out, OPTIONS, IDS, there)
    with pytest.raises(ConfigurationError, match="is quantised; only --backend native"):
        quantize_with_tool(out, tmp_path / "again", OPTIONS, IDS, there)


def test_a_failing_tool_is_quoted_and_leaves_its_log(source: Path, tmp_path: Path) -> None:
    there = environment(tmp_path, tool_that_copies(tmp_path, tmp_path, fails=True))
    with pytest.raises(ConfigurationError, match="ended with code 1") as caught:
        quantize_with_tool(source, tmp_path / "out", OPTIONS, IDS, there)
    assert "no such luck" in str(caught.value)
    assert "a tool talks" in (tmp_path / "out.log").read_text()
    assert not (tmp_path / "out").exists()


def test_an_environment_that_is_given_must_hold_the_tool(tmp_path: Path) -> None:
    there = environment(tmp_path, replace(TOOLS["autoawq"], package="no-such-tool"))
    with pytest.raises(ConfigurationError, match="holds no no-such-tool; install it there"):
        there.ensure(lambda _: None)


def test_what_pip_says_is_told(tmp_path: Path) -> None:
    tool = Tool("no-such-tool", "none.py", (("--no-index", "no-such-tool"),))
    there = ToolEnvironment.locate(tool, tmp_path / "new")
    said: list[str] = []
    with pytest.raises(ConfigurationError, match="could not be installed") as caught:
        there.ensure(said.append)
    assert "No matching distribution found for no-such-tool" in str(caught.value)
    assert "or use --backend native" in str(caught.value)
    assert said[0].startswith("making an environment for no-such-tool")
    assert there.python.exists()


def test_an_environment_of_its_own_lies_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path))
    tool = TOOLS["optimum"]
    first = ToolEnvironment.locate(tool, None)
    other = ToolEnvironment.locate(replace(tool, installs=(("optimum==9",),)), None)
    assert first.folder.parent == other.folder.parent == tmp_path / "tools"
    assert first.folder != other.folder


def test_every_backend_but_our_own_is_a_tool_with_a_driver() -> None:
    assert set(TOOLS) == set(BACKENDS) - {"native"}
    for tool in TOOLS.values():
        assert (DRIVERS / tool.driver).is_file()
        assert os.fspath(tool.driver).endswith("_driver.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "autoawq", "--scheme", "fp8"), "autoawq makes int4-awq, not fp8"),
        (("--backend", "autoawq", "--scheme", "int8"), "that is made by: native, llmcompressor"),
        (("--backend", "optimum"), "optimum makes int4-gptq, not int4-awq"),
        (
            ("--backend", "optimum", "--scheme", "int4-gptq", "--kv-cache", "fp8-static"),
            "goes with --backend native or llmcompressor",
        ),
        (("--environment", "somewhere"), "goes with other backends than native"),
        (("--backend", "gguf"), "'gguf' is not one of"),
    ],
)
def test_what_a_tool_cannot_do_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(main, ["quantize", "nowhere", "out", *arguments])
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
