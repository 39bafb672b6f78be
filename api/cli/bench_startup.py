"""`hasten bench startup`: how long a server takes to be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from hasten.api.cli.figures import json_option, write_json
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.evals.load.startup import StartupOptions


@click.command(
    cls=FlagCommand,
    option_classes=(StartupOptions,),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("server_flags", nargs=-1, type=click.UNPROCESSED)
@json_option
def startup(server_flags: tuple[str, ...], json_path: Path | None, **values: Any) -> None:
    """Time a server from the command to /ready and to its first token, and weigh it.

    Flags that this command does not know are those of `hasten serve`.
    """
    options = build_options(StartupOptions, values)
    from hasten.evals.load.errors import LoadError
    from hasten.evals.load.startup import measure_starts, startup_table
    from rich.console import Console
    from rich.progress import Progress

    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starts", total=options.repeats)
            starts = measure_starts(server_flags, options, lambda: bar.advance(task))
        write_json(json_path, starts)
    except (LoadError, OSError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(startup_table(starts))
