"""The conformance suite passes on every backend here, at any number of threads, and can fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hasten.kernels.backend import Backend, Executable, KVPlan, get_backend
from hasten.kernels.conformance import (
    ConformanceReport,
    Verdict,
    explain,
    render_choices,
    render_report,
    run_conformance,
)
from hasten.kernels.conformance.cases import all_cases
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import Linear, Op
from hasten.kernels.program import WeightName
from hasten.kernels.reference import ReferenceBackend
from hasten.kernels.reference.kv_cache import ReferenceKVCache
from hasten.kernels.step import StepBatch, StepResult
from hasten.kernels.weights import DenseWeight, Weight
from rich.console import Console

F32 = npt.NDArray[np.float32]


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def report(kernels: str) -> ConformanceReport:
    return run_conformance(get_backend(kernels, num_threads=1))


def test_every_op_conforms(report: ConformanceReport) -> None:
    assert [f"{row.op} {row.case}: {row.reason}" for row in report.failed] == []
    assert {row.op for row in report.rows} >= {"linear", "paged_attention", "sample"}


def test_the_reference_refuses_nothing() -> None:
    report = run_conformance(ReferenceBackend(), dtypes=(DType.F32,), ops=("linear", "embed"))
    assert report.refused == ()


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_no_bit(kernels: str, report: ConformanceReport, num_threads: int) -> None:
    threaded = ("act_mul", "linear", "paged_attention")
    again = run_conformance(get_backend(kernels, num_threads), ops=threaded)
    before = [row for row in report.rows if row.op in threaded]
    assert [(row.case, row.digest) for row in again.rows] == [
        (row.case, row.digest) for row in before
    ]


# --- planted faults -----------------------------------------------------------------------------


class Faulty(ReferenceBackend):
    """A backend whose results are wrong in one way."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def compile(self, *operands: Any) -> Any:
        return FaultyExecutable(super().compile(*operands), self.fault)


class FaultyExecutable:
    def __init__(self, inner: Executable, fault: str) -> None:
        self._inner = inner
        self._fault = fault
        self._num_tokens = 0

    def run(self, batch: StepBatch) -> StepResult:
        self._num_tokens = batch.num_tokens
        result = self._inner.run(batch)
        if self._fault == "token":
            result.token_ids += 1
        if self._fault == "logprob":
            result.logprobs += np.float32(1e-3)
        return result

    def tap(self, name: str) -> F32:
        rows = self._inner.tap(name)
        if self._fault == "value":
            rows = rows * np.float32(1.03)
        if self._fault == "one row":
            rows[-1] = 0
        if self._fault == "bits" and self._num_tokens == 1:
            rows = np.nextafter(rows, np.float32(np.inf))
        if self._fault == "nan":
            rows[0, 0] = np.nan
        return rows

    def set_input(self, name: str, rows: F32) -> None:
        self._inner.set_input(name, rows)


@pytest.mark.parametrize(
    ("fault", "op", "complaint"),
    [
        ("value", "rms_norm", "beyond the bound"),
        ("one row", "linear", "beyond the bound"),
        ("nan", "act_mul", "beyond the bound"),
        ("bits", "paged_attention", "bits differ"),
        ("token", "sample", "row 0: token"),
        ("logprob", "gather_rows", "beyond the bound"),
    ],
)
def test_a_planted_fault_is_found(fault: str, op: str, complaint: str) -> None:
    report = run_conformance(Faulty(fault), dtypes=(DType.F32,), ops=(op,))
    assert not report.ok
    assert any(complaint in row.reason for row in report.failed)


class Refusing(ReferenceBackend):
    def supports(self, op: Op, weights: Mapping[WeightName, Weight]) -> str | None:
        return "no linears today" if isinstance(op, Linear) else super().supports(op, weights)


def test_a_refusal_is_reported_with_its_reason_and_is_no_failure() -> None:
    report = run_conformance(Refusing(), dtypes=(DType.F32,), ops=("linear", "embed"))
    assert report.ok
    assert {row.op for row in report.refused} == {"linear"}
    assert report.refused[0].reason == "linear: no linears today"


class Broken(ReferenceBackend):
    def allocate_kv(self, plan: KVPlan) -> ReferenceKVCache:
        raise MemoryError(f"no room for {plan.num_blocks}")


def test_a_backend_that_raises_fails_the_case() -> None:
    report = run_conformance(Broken(), dtypes=(DType.F32,), ops=("embed",))
    assert {row.verdict for row in report.rows} == {Verdict.FAILED}
    assert report.rows[0].reason == "MemoryError: no room for ()"


# --- what a person sees -------------------------------------------------------------------------


def rendered(table: object) -> str:
    console = Console(width=160, record=True, quiet=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_table_names_cases_and_verdicts() -> None:
    text = rendered(render_report(run_conformance(Refusing(), ops=("linear", "embed"))))
    assert "no linears today" in text
    assert "0 failed" in text


def test_explain_says_what_serves_an_op_and_why_none_does() -> None:
    case = next(case for case in all_cases(DType.BF16, lambda *_: None) if case.op == "linear")
    backends: list[Backend] = [ReferenceBackend(), Refusing()]
    served, refused = (explain(backend, case.program, case.weights) for backend in backends)
    assert [choice.op for choice in served] == ["embed", "linear", "tap"]
    assert served[1].operands == "7 bfloat16 x Dense[5, 7]"
    assert str(served[1].implementation).startswith("torch, ")
    assert (refused[1].implementation, refused[1].reason) == (None, "no linears today")
    assert "no linears today" in rendered(render_choices(backends[1], refused))


def test_a_dense_weight_of_the_wrong_shape_is_refused() -> None:
    case = next(case for case in all_cases(DType.F32, lambda *_: None) if case.op == "linear")
    op = next(op for op in case.program.ops if isinstance(op, Linear))
    weights = {**case.weights, op.weight: DenseWeight(np.zeros((2, 3), np.float32))}
    assert ReferenceBackend().supports(op, weights) == "weight weight is (2, 3), not (5, 7)"
