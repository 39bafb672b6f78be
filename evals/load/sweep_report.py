"""A sweep for people: a table and the throughput-against-p99 curves.

Exercised by `pytest tests/unit/load/test_sweep.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hasten.core.options import ConfigurationError
from hasten.evals.load.summary import LoadSummary
from hasten.evals.load.sweep import Sweep, SweepPoint
from rich.console import Group
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sweep_tables(result: Sweep) -> Group:
    """A table for each server, its knee marked and named below it; then what failed."""
    tables = [_table(result, server) for server in result.knees]
    return Group(*tables, *(f"not measured: {failure}" for failure in result.failed))


def _table(result: Sweep, server: str) -> Table:
    table = Table(title=server, title_justify="left", caption_justify="left")
    for column in ("load", "tokens/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "good/s"):
        table.add_column(column, justify="right")
    knee = result.knees[server]
    for point in result.points:
        if point.server == server:
            style = "bold" if point == knee else ""
            table.add_row(point.load, *_figures(point.summary), style=style)
    where = "no point keeps the targets" if knee is None else f"knee: {_words(knee)}"
    table.caption = f"latencies in milliseconds; {where}"
    return table


def _figures(summary: LoadSummary) -> list[str]:
    values = (
        summary.output_tokens_per_s,
        summary.ttft_ms.p50,
        summary.ttft_ms.p99,
        summary.itl_ms.p50,
        summary.itl_ms.p99,
        summary.goodput_per_s,
    )
    return [f"{value:.1f}" for value in values]


def _words(point: SweepPoint) -> str:
    summary = point.summary
    speed = f"{summary.output_tokens_per_s:.0f} tokens/s"
    return f"{point.load}, {speed}, ITL p99 {summary.itl_ms.p99:.1f} ms"


def draw_sweep(result: Sweep, path: Path) -> None:
    """Inter-token latency and time to first token, at p99, over throughput; knees are ringed.

    Raises ConfigurationError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("the plot needs matplotlib: pip install 'hasten[plot]'") from error
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    itl, ttft = figure.subplots(1, 2)
    for server, point in result.knees.items():
        curve = [p for p in result.points if p.server == server]
        curve.sort(key=lambda p: p.summary.output_tokens_per_s)
        _draw_curve(itl, curve, [p.summary.itl_ms.p99 for p in curve], point)
        _draw_curve(ttft, curve, [p.summary.ttft_ms.p99 for p in curve], point)
    for axes, name in ((itl, "inter-token latency"), (ttft, "time to first token")):
        axes.set(xlabel="output tokens per second", ylabel="milliseconds, p99", title=name)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    itl.legend(fontsize="small")
    figure.savefig(path)


def _draw_curve(
    axes: Axes, curve: list[SweepPoint], latencies: list[float], knee: SweepPoint | None
) -> None:
    throughput = [point.summary.output_tokens_per_s for point in curve]
    axes.plot(throughput, latencies, "o-", label=curve[0].server)
    for point, x, y in zip(curve, throughput, latencies, strict=True):
        axes.annotate(point.load, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
        if point == knee:
            axes.plot([x], [y], "o", markersize=14, fillstyle="none", color="black")
