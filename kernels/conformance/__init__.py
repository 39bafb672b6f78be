"""One conformance suite for every backend: values, bits, refusals.

`run_conformance(backend)` runs every op of the table alone, in tiny programs of its own, over odd
sizes, dtypes and weight schemes. A case passes when

    values   error <= 2 x error of plain torch in the same precision + one rounding,
             both against an fp64 oracle in numpy (`oracles`)
    bits     a row's result is the same however the rows are cut into steps and batches

`explain(backend, program, weights)` says which implementation serves each op of a real program.
Exercised by `hasten check` and `pytest tests/cpu/kernels/test_conformance.py`.
"""

from hasten.kernels.conformance.explain import Choice, explain, render_choices
from hasten.kernels.conformance.report import CheckRow, ConformanceReport, Verdict, render_report
from hasten.kernels.conformance.suite import run_conformance

__all__ = [
    "CheckRow",
    "Choice",
    "ConformanceReport",
    "Verdict",
    "explain",
    "render_choices",
    "render_report",
    "run_conformance",
]
