import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner
from hasten.api.cli.main import COMMANDS, main


def test_help_lists_every_command_with_a_line() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=100)
    assert result.exit_code == 0
    listed = result.output.split("Commands:")[1].strip().splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert all(len(line.split()) > 2 for line in listed)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert CliRunner().invoke(main, [command, "-h"]).exit_code == 0


def test_version() -> None:
    assert version("hasten") in CliRunner().invoke(main, ["--version"]).output


def test_an_unknown_command_is_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["serf"])
    assert result.exit_code == 2
    assert "serf" in result.output


def test_a_server_starts_without_what_it_does_not_need() -> None:
    """The process that serves imports neither torch nor the evaluation tools."""
    script = """
import sys
from hasten.api.cli.main import main
main(["serve", "--help"], standalone_mode=False)
import hasten.api.http.server
print([name for name in ("torch", "transformers", "hasten.evals") if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
