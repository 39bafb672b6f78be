"""The conformance suite on interpreted kernels, with fewer ways to cut the rows.

The whole suite (`TRITON_INTERPRET=1 hasten check --kernels triton`) takes the interpreter most of
an hour. Here some of its workloads run, each in one step and again in steps of 5, of 40 and of the
other rows, which is a step of every row class. Attention, which takes the longest, has tests of
its own (`test_attention`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hasten.kernels.conformance import suite
from hasten.kernels.conformance.cutting import Part, Schedule
from hasten.kernels.conformance.report import Verdict
from hasten.kernels.triton.backend import TritonBackend

# Numpy's, of the NaN that the cases plant.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BORDERS = (0, 5, 45)

CASES = (
    ("embed", "width 64, int8 table"),
    ("rms_norm", "width 37, residual"),
    ("norm_columns", "columns 3 to 40 of 65"),
    ("act_mul", "gelu_tanh, width 33"),
    ("add_scaled", "width 67, scale 0.22"),
    ("scale_logits", "width 67, scale 1, softcap 30.0"),
    ("route", "2 of 8, renormalised"),
    ("combine_experts", "2 experts, width 33"),
    ("linear", "dense, 1536 x 64"),
    ("linear", "dense, bias, 64 x 48"),
    ("linear", "int4 groups of 128, 256 x 20"),
    ("linear", "int8 groups of 32, 64 x 33"),
    ("linear", "fp8 blocks of 1 x 96, inputs none, 96 x 33"),
    ("linear", "fp8 blocks of 128 x 128, inputs token_group, 200 x 130"),
    ("linear", "fp8 blocks of 33 x 96, inputs static, 96 x 33"),
    ("grouped_linear", "1 of 6 experts, 1 parts, unlike"),
)


def few_schedules(lengths: Sequence[int]) -> dict[str, Schedule]:
    whole = [Part(request, 0, length) for request, length in enumerate(lengths)]
    stops = (*BORDERS[1:], max(lengths))
    steps = [
        [
            Part(request, start, min(stop, length))
            for request, length in enumerate(lengths)
            if start < length
        ]
        for start, stop in zip(BORDERS, stops, strict=True)
    ]
    return {"together": [whole], "cut": [step for step in steps if step]}


@pytest.mark.parametrize(("op", "case"), CASES, ids=lambda value: value.replace(" ", "-"))
def test_an_op_conforms(
    backend: TritonBackend, monkeypatch: pytest.MonkeyPatch, op: str, case: str
) -> None:
    monkeypatch.setattr(suite, "schedules", few_schedules)
    checks = [
        check
        for check in suite._checks(backend, backend.activation_dtypes)
        if (check.op, check.case) == (op, case)
    ]
    assert len(checks) == 1, "the suite has another name for this case"
    row = checks[0].run()
    assert (row.verdict, row.reason) == (Verdict.PASSED, "")
