"""What goes wrong in a run ends it with one clear line, loses nothing, and never passes."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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


def at_the_second_call(patched: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let scoring over HTTP do `act` first when it is called for the second time."""
    calls = []
    score = UrlTarget.score

    def score_after_act(target: UrlTarget, scored: Sequence[Scored]) -> list[TokenScores]:
        calls.append(scored)
        if len(calls) == 2:
            act()
        return score(target, scored)

    patched.setattr(UrlTarget, "score", score_after_act)


def port_of_our_own() -> int:
    """Free, and below those that systems hand out, so that it stays free between two servers."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def records(suite: Path) -> list[Path]:
    return list((suite.parent / "store" / "records").glob("*.json"))


def test_a_server_that_dies_in_the_middle(
    flags: str, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        server.process.kill()
        server.process.wait()

    command = [f"--port={port_of_our_own()}", *flags.split()]
    with server_process(tmp_path, command) as server:
        assert server.url, server.log
        url = server.url
        with monkeypatch.context() as patched:
            at_the_second_call(patched, die)
            broken = evals(suite, url, "--resume")
    assert broken.exit_code == 2
    assert broken.stderr.splitlines()[-1].startswith(f"evals: {url}: ")
    assert records(suite) == []
    with server_process(tmp_path, command) as again:
        assert again.url == url, again.log
        resumed = evals(suite, url, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "[1/2] first: recalled from an earlier run" in resumed.stderr
    assert len(records(suite)) == 1


def test_a_run_that_is_interrupted(
    server: ServerProcess, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A shell's background jobs, tests among them, are started with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            at_the_second_call(patched, lambda: signal.raise_signal(signal.SIGINT))
            broken = evals(suite, server.url, "--resume")
    finally:
        signal.signal(signal.SIGINT, before)
    assert broken.exit_code == 130
    assert broken.stderr.splitlines()[-1] == "evals: interrupted; --resume goes on from here"
    assert records(suite) == []
    resumed = evals(suite, server.url, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "[1/2] first: recalled from an earlier run" in resumed.stderr


def test_a_disk_that_is_full(server: ServerProcess, suite: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))

    broken = subprocess.run(
        [sys.executable, "-m", "hasten.evals.cli", *arguments(suite, server.url, "--resume")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        preexec_fn=little_room,
        check=False,
    )
    assert broken.returncode == 2, broken.stderr
    assert "cannot be written" in broken.stderr.splitlines()[-1]
    assert records(suite) == []
    resumed = evals(suite, server.url, "--resume")
    assert resumed.exit_code == 0, resumed.output
