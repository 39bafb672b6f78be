"""A load summary for people: one table. Exercised by `pytest tests/unit/load`."""

from __future__ import annotations

from hasten.evals.load.summary import LoadSummary
from rich.table import Table


def summary_table(summary: LoadSummary) -> Table:
    """Latencies by percentile, with throughput and counts as the caption."""
    table = Table(title=f"{summary.workload}: {summary.num_ok} requests", title_justify="left")
    table.add_column("milliseconds")
    for column in ("mean", "p50", "p90", "p99", "max"):
        table.add_column(column, justify="right")
    rows = (
        ("time to first token", summary.ttft_ms),
        ("inter-token latency", summary.itl_ms),
        ("time per output token", summary.tpot_ms),
        ("end to end", summary.e2e_ms),
    )
    for name, p in rows:
        table.add_row(name, *(f"{value:.2f}" for value in (p.mean, p.p50, p.p90, p.p99, p.max)))
    table.caption = caption(summary)
    table.caption_justify = "left"
    return table


def caption(summary: LoadSummary) -> str:
    lines = [
        f"{summary.output_tokens_per_s:.1f} output tokens/s, {summary.requests_per_s:.2f} "
        f"requests/s, goodput {summary.goodput_per_s:.2f}/s in {summary.duration_s:.1f} s",
        f"{summary.num_prompt_tokens} prompt tokens ({summary.num_cached_tokens} cached), "
        f"{summary.num_output_tokens} output tokens",
        f"client: sent {summary.send_lag_ms.p99:.1f} ms late, stalled "
        f"{summary.client_stall_p99_ms:.1f} ms (both p99)",
    ]
    if summary.num_failed:
        lines.append(f"{summary.num_failed} failed: {'; '.join(summary.errors)}")
    return "\n".join(lines)
