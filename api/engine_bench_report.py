"""What `hasten bench latency` and `throughput` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.api.engine_bench import MODEL, SAMPLE
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.engine_bench import LatencyRow, Throughput


def latency_table(rows: Sequence[LatencyRow]) -> Table:
    """A column for each batch size, a line for each part of a step."""
    table = Table(title="microseconds of a decoding step (medians)", title_justify="left")
    table.add_column("requests decoding")
    for row in rows:
        table.add_column(str(row.batch_size), justify="right")
    for part in _in_order(rows[0].parts_us):
        table.add_row(part, *(f"{row.parts_us[part]:,.1f}" for row in rows))
    table.add_section()
    table.add_row("step", *(f"{row.step_us:,.1f}" for row in rows))
    table.add_row("outside the model", *(f"{row.outside_model:.1%}" for row in rows))
    table.add_row("tokens/s", *(f"{row.tokens_per_s:,.1f}" for row in rows))
    table.add_row("prefill of all, ms", *(f"{row.prefill_ms:,.1f}" for row in rows))
    return table


def _in_order(parts: dict[str, float]) -> list[str]:
    """As a step goes: sampling follows the model."""
    names = [name for name in parts if name != SAMPLE]
    names.insert(names.index(MODEL) + 1, SAMPLE)
    return names


def throughput_table(result: Throughput) -> Table:
    """Rates first, then where the time went."""
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    seconds = result.seconds
    table.add_row("requests/s", f"{result.num_requests / seconds:,.2f}")
    table.add_row("output tokens/s", f"{result.num_output_tokens / seconds:,.1f}")
    num_tokens = result.num_prompt_tokens + result.num_output_tokens
    table.add_row("prompt and output tokens/s", f"{num_tokens / seconds:,.1f}")
    table.add_row("seconds", f"{seconds:,.2f}")
    table.add_row("steps", f"{result.num_steps:,}")
    table.add_row("preemptions", f"{result.num_preemptions:,}")
    table.add_section()
    for part, spent_s in result.parts_s.items():
        table.add_row(part, f"{spent_s / seconds:.1%}")
    return table
