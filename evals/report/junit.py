"""JUnit XML, which CI systems show: a test case for each judged measure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from hasten.evals.gate import Verdict
from hasten.evals.report.wording import outcome, power_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.evals.gate import Judgement
    from hasten.evals.record import Record

_ELEMENTS = {Verdict.FAIL: "failure", Verdict.UNDECIDED: "error", Verdict.MISSING: "error"}


def junit_xml(record: Record) -> str:
    """Fails are failures; undecided and missing ones are errors."""
    judged = [j for j in record.judgements if j.verdict is not Verdict.INFORMATION]
    kinds = [_ELEMENTS.get(j.verdict) for j in judged]
    seconds = sum(block.seconds for block in record.blocks)
    attributes = {
        "name": f"evals.{record.suite.name}",
        "tests": len(judged),
        "failures": kinds.count("failure"),
        "errors": kinds.count("error"),
        "time": f"{seconds:.1f}",
        "timestamp": record.created,
    }
    head = f"<testsuite {_attributes(attributes)}>"
    cases = "\n".join(_case(judgement, record) for judgement in judged)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}\n{cases}\n</testsuite>\n'


def _case(judgement: Judgement, record: Record) -> str:
    block, _, measure = judgement.name.partition(".")
    attributes = {"classname": f"{record.suite.name}.{block}", "name": measure}
    head = f"  <testcase {_attributes(attributes)}"
    element = _ELEMENTS.get(judgement.verdict)
    if element is None:
        return f"{head}/>"
    text = f"{outcome(judgement)}\n{power_line(judgement, record)}\n{judgement.note}"
    return (
        f"{head}>\n    <{element} message={quoteattr(outcome(judgement))}>"
        f"{escape(text.strip())}</{element}>\n  </testcase>"
    )


def _attributes(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={quoteattr(str(value))}" for name, value in values.items())
