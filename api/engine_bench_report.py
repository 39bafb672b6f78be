"""What `hasten bench latency` and `throughput` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.api.engine_bench import MODEL, SAMPLE
from rich.table import Table

if TYPE_CHECKING:
    from hasten.api.engine_bench import Latency, Throughput
    from hasten.api.step_limits import LimitShares


def latency_table(measured: Latency) -> Table:
    """A column for each batch size, a line for each part of a step and for each limit."""
    rows = measured.rows
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
    if measured.machine is not None:
        table.add_section()
        columns = [limit_cells(row.limits) for row in rows]
        for name in LIMITS:
            table.add_row(name, *(cells[name] for cells in columns))
    return table


LIMITS = ("MB to read", "of memory bandwidth", "G multiply-adds", "of the arithmetic peak")


def limit_cells(shares: LimitShares | None) -> dict[str, str]:
    """Work and shares of the limits, by the names of `LIMITS`."""
    if shares is None:
        return dict.fromkeys(LIMITS, "-")
    cells = (
        f"{shares.num_bytes / 1e6:,.1f}",
        f"{shares.of_bandwidth:.1%}",
        f"{shares.multiply_adds / 1e9:,.2f}",
        f"{shares.of_multiply_adds:.1%}",
    )
    return dict(zip(LIMITS, cells, strict=True))


def prompt_table(measured: Latency) -> Table:
    """One prompt alone, and what the machine can do."""
    prompt, machine = measured.prompt, measured.machine
    table = Table(title="a prompt alone (medians)", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("tokens", f"{prompt.input_len:,}")
    table.add_row("first token after, ms", f"{prompt.first_token_ms:,.1f}")
    table.add_row("prompt tokens/s", f"{prompt.tokens_per_s:,.1f}")
    if machine is not None:
        for name, cell in limit_cells(prompt.limits).items():
            table.add_row(name, cell)
        table.add_section()
        table.add_row("memory bandwidth, GB/s", f"{machine.bytes_per_s / 1e9:,.1f}")
        table.add_row("arithmetic peak, G/s", f"{machine.multiply_adds_per_s / 1e9:,.1f}")
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
