"""`hasten`: the group of subcommands, and how their errors end a process.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
Exercised by `pytest tests/unit/api/test_cli.py`.
"""

from __future__ import annotations

import click
from hasten.api.cli.chat import chat
from hasten.api.cli.check import check
from hasten.api.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hasten")
def main() -> None:
    """Hasten: a low-latency server for open language models."""


main.add_command(serve)
main.add_command(chat)
main.add_command(check)
