"""`hasten bench`: measure a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.evals.load.bench import LoadOptions


@click.group()
def bench() -> None:
    """Measure latency and throughput."""


@bench.command(cls=FlagCommand, option_classes=(LoadOptions,))
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="HASTEN_API_KEY", show_envvar=True, help="Its bearer token.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write figures here.")
def serve(url: str, api_key: str | None, json_path: Path | None, **values: Any) -> None:
    """Load any OpenAI-compatible server and measure what its clients see.

    Without a rate, --concurrency clients each wait for their answer (closed loop); with
    --request-rate or --trace-speed, requests come whatever the answers do (open loop).
    """
    options = build_options(LoadOptions, values)
    import msgspec
    from hasten.evals.load.bench import run_bench_serve
    from hasten.evals.load.errors import LoadError
    from hasten.evals.load.report import summary_table
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("requests", total=options.num_requests)
            summary = run_bench_serve(
                base_url,
                api_key,
                options,
                lambda done, total: bar.update(task, completed=done, total=total),
            )
        if json_path is not None:
            json_path.write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
    except (LoadError, OSError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(summary_table(summary))
