"""`hasten plan`: what a deployment holds and how fast it can be, before renting anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from hasten.api.cli.flags import FlagCommand, build_options
from hasten.core.options import ConfigurationError
from hasten.core.planning.options import PlanOptions

if TYPE_CHECKING:
    from hasten.core.planning.deployment import Deployment
    from hasten.core.planning.report import PlanReport
    from hasten.core.planning.simulate import SimulationResult


@click.command(cls=FlagCommand, option_classes=(PlanOptions,))
@click.argument("model", default="embedded")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema: docs/plan.md).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw speed over batch to this file.")
@click.option(
    "--simulate",
    "lengths",
    metavar="FILE",
    help="Run the scheduler over these lengths: a trace, or csv of input_tokens,output_tokens.",
)
def plan(model: str, as_json: bool, plot: Path | None, lengths: str | None, **values: Any) -> None:
    """The arithmetic of serving MODEL: a config.json, a directory, a GGUF file or 'embedded'.

    Nothing is downloaded or run. Speeds are ideal: bytes over bandwidth, operations over peak.
    """
    options = build_options(PlanOptions, values)
    from hasten.core.loading.errors import LoadError
    from hasten.core.planning.geometry import SCHEME_BITS
    from hasten.core.planning.report import report

    try:
        deployment = options.deployment(model)
        tpot_s = None if options.tpot_ms is None else options.tpot_ms / 1e3
        figures = report(deployment, tuple(SCHEME_BITS), tpot_s)
        simulated = None if lengths is None else _simulate(deployment, Path(lengths))
        if plot is not None:
            _draw(figures, plot)
    except (ConfigurationError, LoadError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        _print_json(figures, simulated)
    else:
        _print_tables(figures, simulated)


def _simulate(deployment: Deployment, path: Path) -> SimulationResult:
    from hasten.core.latency import StepShape
    from hasten.core.options import SchedulerOptions
    from hasten.core.planning.simulate import SimulatedRequest, simulate
    from hasten.evals.load.errors import LoadError as TraceError
    from hasten.evals.load.workload import trace_lengths
    from hasten.kernels.backend import KVPlan
    from hasten.kernels.dtypes import DType
    from hasten.kernels.program import KVGroupSpec

    try:
        rows = list(trace_lengths(path))
    except TraceError as error:
        raise ConfigurationError(str(error)) from error
    first_s = min((row.arrival_s for row in rows), default=0.0)
    requests = [
        SimulatedRequest(row.input_len, row.output_len, row.arrival_s - first_s) for row in rows
    ]

    def step_time(shape: StepShape) -> float:
        if deployment.device is None:
            return 1.0
        batch = max(1, shape.num_requests)
        return deployment.speed_at(batch, max(1, shape.num_tokens // batch)).step_s

    # One group stands for all layers: what is counted is blocks, not bytes.
    group = KVGroupSpec(
        1, deployment.geometry.num_kv_heads, deployment.geometry.head_size, DType.BF16
    )
    kv_plan = KVPlan((group,), (deployment.num_blocks + 1,), deployment.setting.block_size)
    scheduler = SchedulerOptions(
        max_num_seqs=min(256, deployment.setting.max_num_batched_tokens),
        max_num_batched_tokens=deployment.setting.max_num_batched_tokens,
    )
    return simulate(requests, kv_plan, scheduler, deployment.max_model_len, step_time)


def _print_json(figures: PlanReport, simulated: SimulationResult | None) -> None:
    import msgspec

    data = msgspec.to_builtins(figures)
    if simulated is not None:
        data["simulation"] = {
            **msgspec.to_builtins(simulated),
            "block_waste": simulated.block_waste,
            "reserved_waste": simulated.reserved_waste,
        }
    click.echo(msgspec.json.format(msgspec.json.encode(data)).decode())


def _print_tables(figures: PlanReport, simulated: SimulationResult | None) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=figures.model, title_justify="left", show_header=False)
    for name, value in _facts(figures):
        table.add_row(name, value)
    console.print(table)
    if figures.speed:
        console.print(_speed_table(figures))
    if simulated is not None:
        console.print(_simulation_line(simulated))


def _facts(figures: PlanReport) -> Iterator[tuple[str, str]]:
    yield (
        "parameters",
        f"{_billions(figures.num_params)}, {_billions(figures.active_params)} active",
    )
    share = f"{figures.weight_share_of_bf16:.1%} of bf16"
    yield "weights", f"{_size(figures.weight_bytes)}, {share}  ({_by_scheme(figures)})"
    yield "activations", _size(figures.activation_bytes)
    yield (
        "KV per token",
        (
            f"{figures.kv_bytes_per_token:,} bytes, {figures.kv_share_of_bf16:.1%} of bf16; "
            f"{figures.block_bytes:,} per block"
        ),
    )
    for group in figures.kv_groups if len(figures.kv_groups) > 1 else ():
        window = "all tokens" if group.window is None else f"the last {group.window:,}"
        yield "  group", f"{group.bytes_per_token:,} bytes per token, keeps {window}"
    if figures.num_blocks == 0:
        yield "KV pool", f"does not fit: {_size(-figures.kv_pool_bytes)} short"
    else:
        yield (
            "KV pool",
            (
                f"{_size(figures.kv_pool_bytes)}: {figures.num_blocks:,} blocks, "
                f"{figures.kv_tokens:,} tokens"
            ),
        )
        yield (
            "concurrency",
            f"{figures.max_concurrency:.1f} requests of {figures.max_model_len:,} tokens",
        )
        yield "", f"{figures.concurrency_at_mean_len:,} requests of {figures.mean_len:,} tokens"
        if figures.shared_prefix_len:
            count = f"{figures.concurrency_with_shared_prefix:,}"
            yield "", f"{count} where {figures.shared_prefix_len:,} tokens are a shared prefix"
    if figures.largest_batch_for_tpot is not None:
        yield (
            "largest batch",
            f"{figures.largest_batch_for_tpot:,} within the time per output token",
        )
    if figures.speculation_pays_up_to_batch is not None:
        yield (
            "speculation",
            (
                f"{figures.speculation_drafts} drafts cost no time up to a batch of "
                f"{figures.speculation_pays_up_to_batch:,}"
            ),
        )
    if figures.tensor_parallel_sizes is not None:
        sizes = ", ".join(map(str, figures.tensor_parallel_sizes)) or "none: too large"
        yield "devices that hold it", sizes


def _by_scheme(figures: PlanReport) -> str:
    return ", ".join(f"{n} {_size(size)}" for n, size in figures.weight_bytes_by_scheme.items())


def _speed_table(figures: PlanReport) -> Any:
    from rich.table import Table

    table = Table(title="ideal decode", title_justify="left")
    for column in ("batch", "ms per step", "tokens/s", "tokens/s each", "bound by"):
        table.add_column(column, justify="right")
    for row in figures.speed:
        table.add_row(
            str(row.batch),
            f"{row.step_ms:.2f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.tokens_per_s_per_request:,.0f}",
            row.bound,
        )
    return table


def _simulation_line(result: SimulationResult) -> str:
    return (
        f"simulated: {result.num_steps:,} steps, {result.duration_s:,.1f} s, at most "
        f"{result.peak_running} at once; {result.num_preemptions} preemptions, "
        f"{result.num_recomputed_tokens:,} of {result.num_computed_tokens:,} tokens recomputed; "
        f"blocks wasted {result.block_waste:.1%}, reserving the longest length "
        f"{result.reserved_waste:.1%}"
    )


def _draw(figures: PlanReport, path: Path) -> None:
    """Throughput, and the speed of each request, over the batch."""
    if not figures.speed:
        raise ConfigurationError("--plot needs a device that holds the model")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("--plot needs matplotlib: pip install 'hasten[plot]'") from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    batches = [row.batch for row in figures.speed]
    axes.plot(batches, [row.tokens_per_s for row in figures.speed], "o-", label="all requests")
    axes.plot(
        batches,
        [row.tokens_per_s_per_request for row in figures.speed],
        "s--",
        label="each request",
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="requests at once",
        ylabel="tokens per second (ideal)",
        title=f"{figures.model} on {figures.device}",
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B"


def _size(num_bytes: int) -> str:
    if num_bytes < 2**30:
        return f"{num_bytes / 2**20:,.1f} MiB"
    return f"{num_bytes / 2**30:,.2f} GiB"
