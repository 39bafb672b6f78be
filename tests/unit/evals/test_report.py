from __future__ import annotations

import io
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hasten.evals.gate import Verdict
from hasten.evals.record import Record, read_record
from hasten.evals.report import print_report, write_reports
from hasten.evals.report.diagnosis import diagnose
from hasten.evals.report.html import html_page
from hasten.evals.report.junit import junit_xml
from hasten.evals.report.markdown import markdown
from hasten.evals.report.wording import amount, headline, number
from rich.console import Console

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import opened, run


@pytest.fixture(name="failed", scope="module")
def _failed(tmp_path_factory: pytest.TempPathFactory) -> Record:
    with opened(tmp_path_factory.mktemp("store")) as store:
        return run(store, FakeTarget("base"), FakeTarget("<cand & co>", noise=0.5))


@pytest.fixture(name="passed", scope="module")
def _passed(tmp_path_factory: pytest.TempPathFactory) -> Record:
    with opened(tmp_path_factory.mktemp("store")) as store:
        return run(store, FakeTarget("base"), FakeTarget("cand", noise=0.01))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (0.0012345, "0.00123"), (1.23456, "1.23"), (1234.5, "1234"),
     (1e-9, "0"), (0.5, "0.500")],
)  # fmt: skip
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


def test_amount() -> None:
    assert amount(0.0213, "share") == "2.13 %"
    assert amount(0.01, "nats") == "0.0100 nats"
    assert amount(1.015, "ratio") == "1.015"
    assert amount(None, "nats") == "-"


def test_headlines(passed: Record, failed: Record) -> None:
    assert headline(passed) == "pass: all 7 measures are within their limits"
    assert headline(failed).startswith("fail: ")


def test_the_terminal_shows_each_measure_and_the_verdict(failed: Record) -> None:
    out = io.StringIO()
    print_report(failed, Console(file=out, width=200))
    text = out.getvalue()
    assert all(judgement.name in text for judgement in failed.judgements)
    assert "where: text: damage at all positions" in text
    assert "with 90% power" in " ".join(text.split())
    assert headline(failed) in text.splitlines()[-1]


def test_junit_counts_and_escapes(failed: Record) -> None:
    root = ET.fromstring(junit_xml(failed).encode())
    judged = [j for j in failed.judgements if j.verdict is not Verdict.INFORMATION]
    assert int(root.attrib["tests"]) == len(judged) == len(root.findall("testcase"))
    failures = [j for j in judged if j.verdict is Verdict.FAIL]
    assert int(root.attrib["failures"]) == len(failures) == len(root.findall(".//failure"))


def test_markdown_tables_are_whole(failed: Record) -> None:
    rows = [line for line in markdown(failed).splitlines() if line.startswith("|")]
    assert len(rows) == len(failed.judgements) + 2
    assert {row.count("|") for row in rows} == {7}


class _Links(HTMLParser):
    """Notes every address in a page, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["passed", "failed"])
def test_the_page_is_self_contained_and_well_formed(
    which: str, request: pytest.FixtureRequest
) -> None:
    record: Record = request.getfixturevalue(which)
    page = html_page(record)
    links = _Links()
    links.feed(page)
    assert links.open == []
    assert links.addresses == ["data:,"]
    assert "<script" not in page
    assert "<cand" not in page
    assert page.count("KL by position") >= 2
    assert "Time between tokens" in page
    assert "Worst tokens" in page


def test_all_reports_are_written_and_the_json_is_the_record(passed: Record, tmp_path: Path) -> None:
    write_reports(passed, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["report.html", "report.json", "report.md", "report.xml"]
    assert read_record(tmp_path / "out" / "report.json") == passed


def test_a_pass_needs_no_diagnosis(passed: Record) -> None:
    assert diagnose(passed) == []
