"""The findings as gpu-check.json and gpu-check.md."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.gpu.setting import Row

MAX_LISTED = 60
"""Rows of a table that are shown when all is well; what failed always is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One part: its rows, how long it took, and how it ended ("finished", or why not)."""

    group: str
    name: str
    seconds: float
    ending: str
    rows: list[Row]

    @property
    def ok(self) -> bool:
        return self.ending == "finished" and all(row.get("ok", True) for row in self.rows)


def write_report(findings: Sequence[Finding], facts: dict[str, Any], folder: Path) -> None:
    """Both files, into `folder`."""
    held = {"facts": facts, "parts": [asdict(finding) | {"ok": finding.ok} for finding in findings]}
    (folder / "gpu-check.json").write_text(json.dumps(held, indent=1) + "\n")
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.group].append(finding)
    lines = ["# GPU check", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["| part | seconds | ending |", "|---|---|---|"]
    lines += [
        f"| {finding.group}: {finding.name} | {finding.seconds:.1f} | {_ending(finding)} |"
        for finding in findings
    ]
    for group, members in groups.items():
        rows = [row for member in members for row in member.rows]
        lines += ["", f"## {group}", "", *_table(_shown(rows))]
    (folder / "gpu-check.md").write_text("\n".join(lines) + "\n")


def _ending(finding: Finding) -> str:
    num_failed = sum(not row.get("ok", True) for row in finding.rows)
    if finding.ending != "finished":
        return f"**{finding.ending}**"
    return f"**{num_failed} of {len(finding.rows)} failed**" if num_failed else "ok"


def _shown(rows: list[Row]) -> list[Row]:
    """All rows of a short table, what failed of a long one."""
    failed = [row for row in rows if not row.get("ok", True)]
    return rows if len(rows) <= MAX_LISTED else failed


def _table(rows: list[Row]) -> list[str]:
    if not rows:
        return ["Nothing to list: everything is in gpu-check.json."]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [" | ".join(columns), "|".join("---" for _ in columns)]
    lines += [" | ".join(_cell(row.get(name)) for name in columns) for row in rows]
    return [f"| {line} |" for line in lines]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("|", "/")
