"""The examples of the documentation run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from shutil import which
from typing import Any

import pytest
from hasten.api import LLM

from tests.helpers.server_process import ROOT, ServerProcess

README_URL = "http://127.0.0.1:8000"


def examples(page: str, language: str) -> list[str]:
    """The code blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def curl(command: str, server: ServerProcess) -> list[str]:
    """What each command of an example prints; each is one `curl`, over one or many lines."""
    shown = []
    for line in re.split(r"\n(?=curl )", command.strip()):
        arguments = shlex.split(line.replace(README_URL, server.url))
        assert arguments[0] == "curl"
        done = subprocess.run(
            [*arguments, "--fail-with-body"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        shown.append(done.stdout)
    return shown


@pytest.mark.skipif(which("curl") is None, reason="no curl here")
@pytest.mark.parametrize(
    "command", [*examples("docs/http.md", "sh"), *examples("docs/serving.md", "sh")]
)
def test_the_curl_lines(server: ServerProcess, command: str) -> None:
    for shown in curl(command, server):
        if shown.startswith("data: "):
            assert shown.endswith("data: [DONE]\n\n")
        elif not shown.startswith("# HELP"):
            assert json.loads(shown).get("error") is None


def test_the_error_of_http(server: ServerProcess) -> None:
    (shown,) = examples("docs/http.md", "json")
    with server.client() as http:
        messages = [{"role": "user", "content": "x"}]
        body = {"messages": messages, "temprature": 1}
        assert http.post("/v1/chat/completions", json=body).json() == json.loads(shown)


def test_the_python_of_http(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples("docs/http.md", "python")
    names: dict[str, Any] = {}
    exec(code.replace(README_URL, server.url), names)
    names["client"].close()
    assert capsys.readouterr().out.strip()


def test_python(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """All blocks of the page, one after the other, as a reader would type them."""
    names: dict[str, Any] = {}
    for code in examples("docs/python.md", "python"):
        exec(code, names)
    assert isinstance(names["llm"], LLM)
    shown = capsys.readouterr().out
    assert "Paris" in shown
    assert names["whole"].text
    assert len(names["several"]) == 2
    # The same model, the same request: what the server answers.
    with server.client() as http:
        body = {"messages": names["messages"], "max_tokens": 12, "seed": 1, "temperature": 1.0}
        answer = http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == names["whole"].text


def test_the_flags_that_the_pages_name_exist() -> None:
    from click.testing import CliRunner
    from hasten.api.cli.main import main

    commands = ("serve", "run-batch")
    known = "".join(CliRunner().invoke(main, [name, "--help"]).output for name in commands)
    for page in ("docs/http.md", "docs/python.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for flag in re.findall(r"`(--[a-z-]+)", text):
            assert flag in known, (page, flag)


def test_the_commands_of_bench_parse() -> None:
    from click.testing import CliRunner
    from hasten.api.cli.main import main

    lines = "".join(examples("docs/bench.md", "sh")).splitlines()
    assert lines
    for line in lines:
        name, *arguments = shlex.split(line)
        assert name == "hasten"
        result = CliRunner().invoke(main, [*arguments, "--help"])
        assert result.exit_code == 0, (line, result.output)
