"""`hasten`: the group of subcommands.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
Exercised by `pytest tests/unit/api/test_cli.py`.
"""

from __future__ import annotations

import importlib
import os

import click

COMMANDS = (
    "serve",
    "run-batch",
    "chat",
    "bench",
    "check",
    "plan",
    "quantize",
    "train-eagle",
    "key",
)
"""Each is the command of the same name in the module of the same name beside this one."""


_STDERR = 2


class _Commands(click.Group):
    """Imports a subcommand when it is asked for: a server should not wait for a benchmark."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  the interface
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  the interface
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"hasten.api.cli.{name}")
        command: click.Command = getattr(module, name)
        return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="hasten")
def main() -> None:
    """Hasten: a low-latency server for open language models."""
    open_standard_streams()


def open_standard_streams() -> None:
    """Where a supervisor has closed some: sockets must not get their numbers (libuv aborts)."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(number)
