"""The verdict in the terminal: a table, where the damage is, one last line."""

from __future__ import annotations

from hasten.evals.gate import Verdict
from hasten.evals.record import Record
from hasten.evals.report.diagnosis import diagnose
from hasten.evals.report.wording import amount, headline, outcome, power_line
from rich.console import Console
from rich.table import Table

COLOURS = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.MISSING: "yellow",
    Verdict.INFORMATION: "dim",
}


def print_report(record: Record, console: Console | None = None) -> None:
    """Print a record."""
    console = console or Console(highlight=False)
    console.print(f"candidate  {record.candidate.name}", markup=False)
    console.print(f"baseline   {record.baseline.name}", markup=False)
    console.print(_table(record))
    for line in diagnose(record):
        console.print(f"where: {line}", markup=False)
    console.print(f"[{COLOURS[record.verdict]}]{headline(record)}[/]")


def _table(record: Record) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("measure", "seen", "limit", "verdict", "why", "power"):
        table.add_column(title, overflow="fold")
    for judgement in record.judgements:
        colour = COLOURS[judgement.verdict]
        table.add_row(
            judgement.name,
            amount(judgement.estimate, judgement.unit),
            amount(judgement.limit, judgement.unit),
            f"[{colour}]{judgement.verdict.value}[/]",
            outcome(judgement),
            power_line(judgement, record),
        )
    return table
