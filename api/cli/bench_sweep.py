"""`hasten bench sweep`: a grid of loads, and of server flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from hasten.api.cli.figures import write_json
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.core.options import ConfigurationError
from hasten.evals.load.bench import LoadOptions
from hasten.evals.load.sweep import SweepOptions

_SWEPT = {"concurrency": 1, "request_rate": None, "end_rate": None, "trace_speed": None}
"""Options of one load that a sweep sets for each point."""


@click.command(
    cls=FlagCommand,
    option_classes=(SweepOptions, LoadOptions),
    without=frozenset(_SWEPT),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("server_flags", nargs=-1, type=click.UNPROCESSED)
@click.option("--url", help="A server that runs; without it, each grid point starts its own.")
@click.option("--api-key", envvar="HASTEN_API_KEY", show_envvar=True, help="Its bearer token.")
@click.option("--grid", multiple=True, help="Server flag to vary, as --max-num-seqs=8,32.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="sweep",
    show_default=True,
    help="Folder for points, sweep.json and sweep.png; what it holds is not measured again.",
)
def sweep(
    server_flags: tuple[str, ...],
    url: str | None,
    api_key: str | None,
    grid: tuple[str, ...],
    output: Path,
    **values: Any,
) -> None:
    """Draw throughput against p99 latency over a range of loads, and name the knee.

    Flags that this command does not know are those of `hasten serve`. With latency targets the
    knee is the fastest point that keeps them at p99. An interrupted sweep goes on where it ended.
    """
    load = build_options(LoadOptions, values | _SWEPT)
    loads = build_options(SweepOptions, values).loads(load)
    if url is not None and (grid or server_flags):
        raise click.UsageError("--url takes no server flags: the server runs already")
    from hasten.evals.load.sweep import asked_points, server_grid
    from hasten.evals.load.sweep import sweep as run_sweep
    from hasten.evals.load.sweep_report import draw_sweep, sweep_tables
    from rich.console import Console
    from rich.progress import Progress

    base_url = None if url is None else url.rstrip("/").removesuffix("/v1") + "/v1"
    try:
        points = asked_points(base_url, server_grid(server_flags, grid), loads)
        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("points", total=len(points))

            def watch(point: Any, outcome: str) -> None:
                bar.console.print(f"{point.server}, {point.name}: {outcome}", highlight=False)
                bar.advance(task)

            result = run_sweep(points, api_key, output, watch)
        write_json(output / "sweep.json", result)
        Console().print(sweep_tables(result))
        if result.points:
            draw_sweep(result, output / "sweep.png")
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(str(error)) from error
    if result.failed:
        raise click.ClickException(f"{len(result.failed)} of {len(points)} points not measured")
