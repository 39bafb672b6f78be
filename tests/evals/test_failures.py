"""What goes wrong in a run ends it with one clear line, loses nothing, and never passes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hasten.evals.cli.main import cli
from hasten.evals.target import Scored, TokenScores
from hasten.evals.url_target import UrlTarget

from tests.helpers.server_process import ROOT, ServerProcess, server_process

SUITE = """
name = "tiny"
description = "for tests"
[[blocks]]
kind = "choice"
name = "first"
num_items = 8
limits = { accuracy_loss = 0.3 }
[[blocks]]
kind = "choice"
name = "second"
num_items = 16
limits = { accuracy_loss = 0.3 }
"""


@pytest.fixture(name="suite")
def _suite(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SUITE)
    return path


@pytest.fixture(name="server", scope="module")
def _server(flags: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with server_process(folder, ["--port=0", *flags.split()]) as process:
        assert process.url, process.log
        yield process


def arguments(suite: Path, url: str, *more: str) -> list[str]:
    store = str(suite.parent / "store")
    return ["run", str(suite), "--baseline", url, "--candidate", url, "--store", store, *more]


def evals(suite: Path, url: str, *more: str) -> Result:
    return CliRunner().invoke(cli, arguments(suite, url, *more))


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hasten.evals.cli", *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def records(suite: Path) -> list[Path]:
    return list((suite.parent / "store" / "records").glob("*.json"))


def test_a_server_that_dies_in_the_middle(
    flags: str, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def die_at_the_second(target: UrlTarget, scored: Sequence[Scored]) -> list[TokenScores]:
        calls.append(scored)
        if len(calls) == 2:
            server.process.kill()
            server.process.wait()
        return score(target, scored)

    score = UrlTarget.score
    with server_process(tmp_path, ["--port=0", *flags.split()]) as server:
        assert server.url, server.log
        url = server.url
        with monkeypatch.context() as patched:
            patched.setattr(UrlTarget, "score", die_at_the_second)
            broken = evals(suite, url, "--resume")
    assert broken.exit_code == 2
    assert broken.stderr.splitlines()[-1].startswith(f"evals: {url}: ")
    assert records(suite) == []
    port = url.rpartition(":")[2]
    with server_process(tmp_path, [f"--port={port}", *flags.split()]):
        resumed = evals(suite, url, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "[1/2] first: recalled from an earlier run" in resumed.stderr
    assert len(records(suite)) == 1


def test_a_run_that_is_interrupted(server: ServerProcess, suite: Path) -> None:
    with start(arguments(suite, server.url, "--resume")) as run:
        assert run.stderr is not None
        lines = []
        for line in run.stderr:
            lines.append(line)
            if line.startswith("[1/2]"):
                run.send_signal(signal.SIGINT)
    assert run.returncode == 130, lines
    assert lines[-1] == "evals: interrupted; --resume goes on from here\n"
    assert records(suite) == []
    resumed = evals(suite, server.url, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "[1/2] first: recalled from an earlier run" in resumed.stderr


def test_a_disk_that_is_full(server: ServerProcess, suite: Path) -> None:
    with start(arguments(suite, server.url, "--resume")) as run:
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (4_000, 4_000))
        _, errors = run.communicate(timeout=120)
    assert run.returncode == 2, errors
    assert "cannot be written" in errors.splitlines()[-1]
    assert records(suite) == []
    resumed = evals(suite, server.url, "--resume")
    assert resumed.exit_code == 0, resumed.output
