"""`hasten bench`: measure a server, or an engine in this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
from hasten.api.cli.bench_spec import spec
from hasten.api.cli.bench_startup import startup
from hasten.api.cli.bench_sweep import sweep
from hasten.api.cli.figures import json_option, write_json
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.api.engine_bench import LatencyOptions, ThroughputOptions
from hasten.core.options import EngineOptions
from hasten.evals.load.bench import LoadOptions


@click.group()
def bench() -> None:
    """Measure latency and throughput."""


@bench.command(cls=FlagCommand, option_classes=(LoadOptions,))
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--api-key", envvar="HASTEN_API_KEY", show_envvar=True, help="Its bearer token.")
@json_option
def serve(url: str, api_key: str | None, json_path: Path | None, **values: Any) -> None:
    """Load any OpenAI-compatible server and measure what its clients see.

    Without a rate, --concurrency clients each wait for their answer (closed loop); with
    --request-rate or --trace-speed, requests come whatever the answers do (open loop).
    """
    options = build_options(LoadOptions, values)
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
        write_json(json_path, summary)
    except (LoadError, OSError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(summary_table(summary))


@bench.command(cls=FlagCommand, option_classes=(EngineOptions, LatencyOptions))
@json_option
def latency(json_path: Path | None, **values: Any) -> None:
    """Time prompts alone, and the parts of a step while 1, 4, 16 ... requests decode.

    Without a server: the engine runs in this process, as `hasten serve` would start it. On the
    native CPU kernels, times are held against the limits of this machine (docs/bench.md).
    """
    engine = build_options(EngineOptions, values)
    options = build_options(LatencyOptions, values)
    from hasten.api.engine_bench import BenchEngine, measure_latency
    from hasten.api.engine_bench_report import latency_table, prompt_table
    from hasten.api.step_limits import StepLimits
    from hasten.core.binding import make_backend
    from rich.console import Console

    try:
        backend = make_backend(engine.execution)
        limits = StepLimits.measure(engine)
        measured = measure_latency(BenchEngine(engine), options, backend, limits)
        write_json(json_path, measured)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(prompt_table(measured), latency_table(measured))


@bench.command(cls=FlagCommand, option_classes=(EngineOptions, ThroughputOptions))
@json_option
def throughput(json_path: Path | None, **values: Any) -> None:
    """Run many requests at once through an engine in this process, as fast as it goes."""
    engine = build_options(EngineOptions, values)
    options = build_options(ThroughputOptions, values)
    from hasten.api.engine_bench import BenchEngine, measure_throughput
    from hasten.api.engine_bench_report import throughput_table
    from rich.console import Console
    from rich.progress import Progress

    try:
        bench_engine = BenchEngine(engine)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("requests", total=options.num_requests)
            result = measure_throughput(bench_engine, options, partial(bar.advance, task))
        write_json(json_path, result)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    Console().print(throughput_table(result))


bench.add_command(spec)
bench.add_command(startup)
bench.add_command(sweep)
