"""`hasten quantize --backend TOOL`, with a driver of ours in the place of a tool.

What the tools themselves write is tested in `tests/interop`, where they can be installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.core.loading import LoadError, load_model
from hasten.core.options import ConfigurationError
from hasten.core.quantize import QuantizeOptions, quantize_model
from hasten.core.quantize.options import BACKENDS
from hasten.core.quantize.tools import TOOLS, Tool, ToolEnvironment, quantize_with_tool
from hasten.core.quantize.tools import run as tools_run
from hasten.core.quantize.tools.environment import LOG, MARK
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
    told["input"] = sys.stdin.read()
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


PYTHON = """#!/bin/sh
echo "$2: $(cat) $(env | grep -c ^PYTHON)" >> {folder}/calls
case $2 in
    venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/pyvenv.cfg" ;;
    pip) test -e {folder}/index ;;
esac
"""
"""In the place of Python: pip finds what it is asked for once the file `index` is there."""


@pytest.fixture
def own_input(tmp_path: Path) -> Iterator[None]:
    """Something to be read from the standard input of this process."""
    (tmp_path / "input").write_text("for us alone")
    before = os.dup(0)
    with (tmp_path / "input").open() as file:
        os.dup2(file.fileno(), 0)
    yield
    os.dup2(before, 0)
    os.close(before)


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


def names_of(out: str, folder: Path) -> set[str]:
    """What lies in the folder for a directory of this name."""
    return {path.name for path in folder.iterdir() if path.name.lstrip(".").startswith(out)}


@pytest.mark.usefixtures("own_input")
def test_a_tools_work_is_followed_loaded_and_reported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    made, out = tmp_path / "made", tmp_path / "out"
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.log").write_text("of somebody else")
    quantize_model(str(source), made, replace(OPTIONS, backend="native"), IDS)
    there = environment(tmp_path, tool_that_copies(tmp_path, made))
    there.ensure(lambda _: pytest.fail("nothing is to be installed"))
    seen: list[int] = []
    report = quantize_with_tool(source, out, OPTIONS, IDS, there, seen.append)
    assert seen == [1, 2, 3]
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["group_size"], told["scheme"]) == (32, "int4-awq")
    assert told["token_ids"] == IDS.tolist()
    assert (told["variables"], told["input"]) == (["HF_HUB_OFFLINE"], "")
    assert report is not None
    own = json.loads((made / "quantize_report.json").read_text())
    assert report.group_size == 32
    assert report.bf16_bytes == own["bf16_bytes"]
    found = [layer.relative_error for layer in report.layers]
    assert found == pytest.approx([layer["relative_error"] for layer in own["layers"]], rel=1e-3)
    assert json.loads((out / "quantize_report.json").read_text())["scheme"] == "int4-awq"
    assert isinstance(load_model(str(out)).weights["layers.0.o"], GroupedIntWeight)  # type: ignore[index]  # names are strings
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    assert (tmp_path / "out.log").read_text() == "of somebody else"
    assert names_of("out", tmp_path) == {"out", "out.log", "out.partial"}
    with pytest.raises(ConfigurationError, match="exists already"):
        quantize_with_tool(source, out, OPTIONS, IDS, there)
    with pytest.raises(ConfigurationError, match="is quantised; only --backend native"):
        quantize_with_tool(out, tmp_path / "again", OPTIONS, IDS, there)


def test_a_failing_tool_is_quoted_and_leaves_its_log(source: Path, tmp_path: Path) -> None:
    there = environment(tmp_path, tool_that_copies(tmp_path, tmp_path, fails=True))
    (tmp_path / "out.log").write_text("of somebody else")
    with pytest.raises(ConfigurationError, match="ended with code 1") as caught:
        quantize_with_tool(source, tmp_path / "out", OPTIONS, IDS, there)
    assert "no such luck" in str(caught.value)
    assert str(caught.value).endswith(f"the tool's log: {tmp_path / 'out.2.log'}")
    assert "a tool talks" in (tmp_path / "out.2.log").read_text()
    assert (tmp_path / "out.log").read_text() == "of somebody else"
    assert names_of("out", tmp_path) == {"out.log", "out.2.log"}


def test_the_log_stays_when_what_a_tool_made_cannot_be_read(source: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    there = environment(tmp_path, tool_that_copies(tmp_path, tmp_path / "made"))
    with pytest.raises(ConfigurationError, match="the tool's log: ") as caught:
        quantize_with_tool(source, tmp_path / "out", OPTIONS, IDS, there)
    assert isinstance(caught.value.__cause__, LoadError)
    assert names_of("out", tmp_path) == {"out.log"}


def test_an_interrupt_leaves_nothing_half_done(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tools_run, "copy_companions", interrupt)
    quantize_model(str(source), tmp_path / "made", replace(OPTIONS, backend="native"), IDS)
    there = environment(tmp_path, tool_that_copies(tmp_path, tmp_path / "made"))
    with pytest.raises(KeyboardInterrupt):
        quantize_with_tool(source, tmp_path / "out", OPTIONS, IDS, there)
    assert names_of("out", tmp_path) == set()


def test_a_python_that_does_not_run_leaves_no_open_pipe(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = environment(tmp_path, tool_that_copies(tmp_path, tmp_path))
    there.python.chmod(0o644)
    pipes: list[int] = []
    make_pipe = os.pipe

    def pipe() -> tuple[int, int]:
        pipes.extend(made := make_pipe())
        return made

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(ConfigurationError, match="Permission denied"):
        quantize_with_tool(source, tmp_path / "out", OPTIONS, IDS, there)
    assert pipes
    for descriptor in pipes:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


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


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(folder=tmp_path))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for name in ("PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, "/nowhere")


@pytest.mark.usefixtures("fake_python", "own_input")
@pytest.mark.parametrize("is_given", [True, False])
def test_an_installation_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_given: bool
) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    tool = Tool("a-tool", "none.py", (("a-tool",),))
    there = ToolEnvironment.locate(tool, tmp_path / "new" if is_given else None)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="could not be installed"):
            there.ensure(lambda _: None)
        assert there.python.exists()
        assert not (there.folder / MARK).exists()
    (tmp_path / "index").touch()
    there.ensure(lambda _: None)
    assert (there.folder / MARK).exists()
    there.ensure(lambda _: pytest.fail("it is there"))
    # The Python that it was made with goes.
    there.python.unlink()
    there.python.symlink_to(tmp_path / "gone")
    there.ensure(lambda _: None)
    there.ensure(lambda _: pytest.fail("it is there again"))
    # Neither input nor variables of ours reach venv and pip.
    assert (tmp_path / "calls").read_text().splitlines() == ["venv:  0", "pip:  0"] * 4


@pytest.mark.usefixtures("fake_python", "own_input")
def test_an_environment_of_somebody_else_is_asked_without_our_variables(tmp_path: Path) -> None:
    there = environment(tmp_path, Tool("a-tool", "none.py", ()))
    there.ensure(lambda _: pytest.fail("nothing is to be installed"))
    assert len((tmp_path / "calls").read_text().splitlines()) == 1
    assert (tmp_path / "calls").read_text().endswith(":  0\n")


@pytest.mark.usefixtures("fake_python", "own_input")
def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes").touch()
    there = ToolEnvironment.locate(Tool("a-tool", "none.py", ()), folder)
    with pytest.raises(
        ConfigurationError, match="holds other things than an environment"
    ) as caught:
        there.ensure(lambda _: None)
    assert str(folder) in str(caught.value)
    (folder / "pyvenv.cfg").touch()
    with pytest.raises(ConfigurationError, match="leads to a Python that is gone"):
        there.ensure(lambda _: None)
    assert {path.name for path in folder.iterdir()} == {"notes", "pyvenv.cfg"}
    empty = ToolEnvironment.locate(there.tool, tmp_path / "empty")
    empty.folder.mkdir()
    empty.ensure(lambda _: None)
    assert (empty.folder / LOG).exists()


def test_tests_of_the_tools_fail_where_these_cannot_be_installed(tmp_path: Path) -> None:
    (tmp_path / "autoawq").mkdir()
    (tmp_path / "autoawq" / "notes").touch()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "autoawq",
         "tests/interop/test_tools_write.py"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "HASTEN_INTEROP": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "holds other things than an environment" in done.stdout


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
