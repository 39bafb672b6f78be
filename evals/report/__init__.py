"""Reports of a record: terminal, Markdown, JUnit XML, JSON, one HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.report.html import html_page
from hasten.evals.report.junit import junit_xml
from hasten.evals.report.markdown import markdown
from hasten.evals.report.terminal import print_report

if TYPE_CHECKING:
    from pathlib import Path

    from hasten.evals.record import Record

__all__ = ["print_report", "write_reports"]


def write_reports(record: Record, folder: Path) -> None:
    """Write report.json, report.xml, report.md and report.html. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.json": msgspec.json.format(msgspec.json.encode(record), indent=1).decode(),
        "report.xml": junit_xml(record),
        "report.md": markdown(record),
        "report.html": html_page(record),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
