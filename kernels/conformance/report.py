"""What the suite found, as rows and as a table."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.kernels.dtypes import DType

if TYPE_CHECKING:
    from rich.table import Table


class Verdict(enum.StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One case of one op.

    `error` and `bound` are relative to the largest expected magnitude (for `sample`: the largest
    difference of a log-probability). `bits_equal` tells whether all ways to cut the rows agreed.
    `digest` identifies the bits of the result, to compare runs with one another. `reason` says
    why the case failed or was refused.
    """

    op: str
    case: str
    dtype: DType
    verdict: Verdict
    error: float = float("nan")
    bound: float = float("nan")
    bits_equal: bool | None = None
    digest: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """All rows of one backend's run; `ok` when none failed (a refusal is no failure)."""

    backend: str
    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[CheckRow, ...]:
        return tuple(row for row in self.rows if row.verdict is Verdict.FAILED)

    @property
    def refused(self) -> tuple[CheckRow, ...]:
        return tuple(row for row in self.rows if row.verdict is Verdict.REFUSED)


def render_report(report: ConformanceReport) -> Table:
    """The report as a table for a terminal."""
    from rich.table import Table

    num_passed = len(report.rows) - len(report.failed) - len(report.refused)
    table = Table(
        title=f"kernels: {report.backend}",
        caption=f"{num_passed} passed, {len(report.failed)} failed, {len(report.refused)} refused",
    )
    for column in ("op", "case", "dtype"):
        table.add_column(column)
    table.add_column("error", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("bits")
    table.add_column("verdict")
    for row in report.rows:
        table.add_row(*_cells(row))
    return table


_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.REFUSED: "yellow"}
_BITS = {None: "", True: "equal", False: "differ"}


def _cells(row: CheckRow) -> tuple[str, ...]:
    ran = row.bits_equal is not None
    verdict = f"[{_STYLES[row.verdict]}]{row.verdict}[/]"
    return (
        row.op,
        row.case,
        row.dtype,
        f"{row.error:.1e}" if ran else "",
        f"{row.bound:.1e}" if ran else "",
        _BITS[row.bits_equal],
        f"{verdict} {row.reason}" if row.reason else verdict,
    )
