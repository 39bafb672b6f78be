"""A record as Markdown, for pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.evals.report.diagnosis import diagnose
from hasten.evals.report.wording import amount, headline, meaning, outcome, power_line

if TYPE_CHECKING:
    from hasten.evals.record import Record


def markdown(record: Record) -> str:
    """Verdict, table, where the damage is, what was measured."""
    lines = [
        f"# {headline(record)}",
        "",
        f"Candidate: {record.candidate.name} (`{record.candidate.hash[:12]}`)  ",
        f"Baseline: {record.baseline.name} (`{record.baseline.hash[:12]}`)  ",
        f"Suite: {record.suite.name} (`{record.suite.hash[:12]}`), {record.created}, "
        f"record `{record.record_id}`",
        "",
        "| measure | seen | limit | verdict | why | power |",
        "|---|---:|---:|---|---|---|",
        *(_row(record, index) for index in range(len(record.judgements))),
        "",
        *(f"- {line}" for line in diagnose(record)),
        *_notes(record),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(record: Record, index: int) -> str:
    judgement = record.judgements[index]
    cells = (
        judgement.name,
        amount(judgement.estimate, judgement.unit),
        amount(judgement.limit, judgement.unit),
        judgement.verdict.value,
        outcome(judgement),
        power_line(judgement, record),
    )
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _notes(record: Record) -> list[str]:
    lines = ["", "## Measures", ""]
    for judgement in record.judgements:
        notes = [meaning(judgement.name), judgement.note]
        lines.append(f"- {judgement.name}: {'; '.join(note for note in notes if note)}")
    lines += ["", "## Data", ""]
    lines += [f"- `{name}`: sha256 `{digest[:16]}`" for name, digest in record.data.items()]
    return lines
