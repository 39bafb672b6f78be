"""Every `evals` command in the documents is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from hasten.evals.cli.main import cli
from hasten.evals.cli.targets import engine_options, url_options

ROOT = Path(__file__).parents[3]
COMMANDS = [
    line.split("#")[0].strip()
    for document in (ROOT / "docs" / "evals.md", ROOT / "README.md")
    for line in re.findall(r"^evals .+$", document.read_text(encoding="utf-8"), re.MULTILINE)
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 5


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    group: click.Group = cli
    context = click.Context(cli)
    arguments = shlex.split(command)[1:]
    while True:
        name, found, arguments = group.resolve_command(context, arguments)
        assert found is not None
        if not isinstance(found, click.Group):
            break
        group = found
    missing = [word for word in arguments if word.startswith("../") and not Path(word).exists()]
    if missing:
        pytest.skip(f"{missing[0]} is not here")
    parameters = found.make_context(name, arguments).params
    for side in ("baseline", "candidate"):
        flags = parameters.get(f"{side}_args") or ""
        is_url = str(parameters.get(side)).startswith("http")
        assert url_options(flags) if is_url else engine_options("m", flags)
