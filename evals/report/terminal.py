"""The verdict in the terminal: a table, why what did not pass did not, where the damage is."""

from __future__ import annotations

from hasten.evals.gate import Judgement, Verdict
from hasten.evals.record import Record
from hasten.evals.report.diagnosis import diagnose
from hasten.evals.report.wording import amount, detectable, headline, outcome
from rich.console import Console
from rich.table import Table

COLOURS = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.UNDECIDED: "yellow",
    Verdict.MISSING: "yellow",
    Verdict.INFORMATION: "dim",
}
PIPE_WIDTH = 160
DECIDED = (Verdict.PASS, Verdict.INFORMATION)


def print_report(record: Record, console: Console | None = None) -> None:
    """Print a record."""
    console = console or wide_console()
    console.print(f"candidate  {record.candidate.name}", markup=False)
    console.print(f"baseline   {record.baseline.name}", markup=False)
    console.print(_table(record))
    console.print(
        f"at most: the upper {1 - record.suite.alpha:.0%} bound. sees: the least harm that so many "
        f"samples would show to be beyond the limit with {record.suite.power:.0%} power.",
        style="dim",
    )
    for judgement in record.judgements:
        if judgement.verdict not in DECIDED:
            console.print(f"{judgement.name}: {outcome(judgement)}", markup=False)
    for line in diagnose(record):
        console.print(f"where: {line}", markup=False)
    console.print(f"[{COLOURS[record.verdict]}]{headline(record)}[/]")


def wide_console() -> Console:
    """Files and pipes have no width of their own: lines stay whole there."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _table(record: Record) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("measure", no_wrap=True)
    for title in ("seen", "at most", "limit", "sees"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for judgement in record.judgements:
        table.add_row(judgement.name, *_numbers(judgement), _verdict(judgement))
    return table


def _numbers(judgement: Judgement) -> tuple[str, str, str, str]:
    unit = judgement.unit
    return (
        amount(judgement.estimate, unit),
        amount(judgement.upper, unit),
        amount(judgement.limit, unit),
        detectable(judgement),
    )


def _verdict(judgement: Judgement) -> str:
    if judgement.verdict is Verdict.INFORMATION:
        return ""
    return f"[{COLOURS[judgement.verdict]}]{judgement.verdict.value}[/]"
