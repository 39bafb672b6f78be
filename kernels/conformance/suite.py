"""Running the cases: against the oracle, against plain torch, and against other ways to cut."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from hasten.kernels.backend import KVPlan, first_refusal
from hasten.kernels.conformance import oracles
from hasten.kernels.conformance.cases import (
    OUT,
    ActivationGroup,
    Case,
    all_cases,
    never_quantized,
)
from hasten.kernels.conformance.cutting import BLOCK_SIZE, BatchMaker, Schedule, schedules
from hasten.kernels.conformance.family_cases import family_cases
from hasten.kernels.conformance.report import CheckRow, ConformanceReport, Verdict
from hasten.kernels.conformance.sampling_cases import (
    MAX_LOGIT_ROWS,
    SamplingCase,
    sampling_cases,
)
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity

if TYPE_CHECKING:
    from hasten.kernels.backend import Backend, Executable
    from hasten.kernels.step import StepResult
    from hasten.kernels.weights import Weight

F32 = npt.NDArray[np.float32]

EPSILON = {DType.BF16: 2.0**-8, DType.F32: 2.0**-24}
"""Half a unit in the last place of 1.0: what one rounding may cost."""
TORCH_CEILING = {DType.BF16: 2.0**-7, DType.F32: 2.0**-17}
"""The most that plain torch may be off itself; beyond it the reference is wrong, not imprecise."""
NEAR_MISS = 1e-4
"""Below this margin another token is as right: fp32 arithmetic cannot tell them apart."""
LOGPROB_BOUND = 2e-5


@runtime_checkable
class QuantizesActivations(Protocol):
    """A backend whose linears quantise their inputs to int8 and say in groups of how many."""

    def activation_group(self, weight: Weight, dtype: DType) -> int | None:
        """Inputs per group for one matrix and activation dtype; None where it does not."""
        ...


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the runs of one case gave, whichever kind of case it is."""

    error: float
    bound: float
    differing: tuple[str, ...]  # ways to cut the rows that gave other bits
    digest: str
    complaint: str = ""


def run_conformance(
    backend: Backend,
    dtypes: Sequence[DType] | None = None,
    ops: Collection[str] | None = None,
    progress: Callable[[str], None] | None = None,
    share: slice = slice(None),
) -> ConformanceReport:
    """Run every case on `backend`, in its own activation dtypes unless `dtypes` says otherwise.

    `ops` are the names of those to check, None for all. `progress` is told each case's name
    before it runs. `share` takes some of the cases (several processes may each run their share).
    A backend that raises fails the case.
    """
    rows = []
    checks = _checks(backend, dtypes or backend.activation_dtypes)
    for check in islice(checks, share.start, share.stop, share.step):
        if ops is not None and check.op not in ops:
            continue
        if progress is not None:
            progress(f"{check.op}: {check.case}")
        rows.append(check.run())
    return ConformanceReport(backend.name, tuple(rows))


@dataclass(frozen=True, slots=True)
class _Check:
    """One case and how to run it."""

    op: str
    case: str
    dtype: DType
    refusal: Callable[[], str | None]
    measure: Callable[[], _Outcome]

    def run(self) -> CheckRow:
        row = CheckRow(self.op, self.case, self.dtype, Verdict.REFUSED)
        try:
            reason = self.refusal()
            if reason is not None:
                return replace(row, reason=reason)
            outcome = self.measure()
        except Exception as error:  # noqa: BLE001 (whatever a backend raises is its failure)
            return replace(row, verdict=Verdict.FAILED, reason=f"{type(error).__name__}: {error}")
        reason = _complaint(outcome)
        return replace(
            row,
            verdict=Verdict.FAILED if reason else Verdict.PASSED,
            error=outcome.error,
            bound=outcome.bound,
            bits_equal=not outcome.differing,
            digest=outcome.digest,
            reason=reason,
        )


def _complaint(outcome: _Outcome) -> str:
    if outcome.complaint:
        return outcome.complaint
    if not outcome.error <= outcome.bound:  # also when the error is NaN
        return "beyond the bound"
    return f"bits differ: {', '.join(outcome.differing)}" if outcome.differing else ""


def _checks(backend: Backend, dtypes: Sequence[DType]) -> Iterator[_Check]:
    group: ActivationGroup = never_quantized
    if isinstance(backend, QuantizesActivations):
        group = backend.activation_group
    for dtype in dtypes:
        for case in chain(all_cases(dtype, group), family_cases(dtype, group)):
            yield _op_check(backend, case)
    for sampling in sampling_cases():
        yield _sampling_check(backend, sampling)


# --- ops ----------------------------------------------------------------------------------------


def _op_check(backend: Backend, case: Case) -> _Check:
    return _Check(
        case.op,
        case.name,
        case.dtype,
        lambda: first_refusal(backend, case.program.ops, case.weights),
        lambda: _measure_op(backend, case),
    )


def _measure_op(backend: Backend, case: Case) -> _Outcome:
    from hasten.kernels.reference import ReferenceBackend

    ways = schedules(case.lengths)
    runner = _OpRunner(backend, case)
    together = runner.run(ways["together"])
    differing = [
        name for name, way in ways.items() if not np.array_equal(runner.run(way), together)
    ]
    torch_result = _OpRunner(ReferenceBackend(), case).run(ways["together"])
    torch_error = min(_relative_error(torch_result, case), TORCH_CEILING[case.dtype])
    return _Outcome(
        error=_relative_error(together, case),
        bound=2 * torch_error + EPSILON[case.dtype] + case.allowance,
        differing=tuple(differing),
        digest=_digest(together),
    )


def _relative_error(result: F32, case: Case) -> float:
    """The largest difference over the largest expected magnitude; infinite for NaN."""
    worst = float(np.abs(result - case.expected).max() / np.abs(case.expected).max())
    return worst if np.isfinite(worst) else float("inf")


class _OpRunner:
    """One case compiled for one backend."""

    def __init__(self, backend: Backend, case: Case) -> None:
        self._case = case
        self._maker = BatchMaker(case.lengths, case.program.kv_groups)
        groups = case.program.kv_groups
        plan = KVPlan(groups, (self._maker.num_blocks,) * len(groups), BLOCK_SIZE)
        capacity = Capacity(
            max_tokens=max(sum(case.lengths), self._maker.max_len),
            max_requests=len(case.lengths),
            max_logit_rows=1,
            max_model_len=self._maker.max_len,
        )
        cache = backend.allocate_kv(plan)
        self._executable = backend.compile(case.program, case.weights, cache, capacity)

    def run(self, schedule: Schedule) -> F32:
        """Every row of the workload, in its order, [num_rows, columns]; the cache starts as NaN."""
        self._poison()
        result = np.full(self._case.expected.shape, np.nan, dtype=np.float32)
        for parts in schedule:
            self._executable.run(self._maker.batch(parts))
            tapped = self._executable.tap(OUT)
            result[self._maker.rows(parts)] = tapped[:, self._case.columns]
        return result

    def _poison(self) -> None:
        if self._case.program.kv_groups:
            for request in range(len(self._case.lengths)):
                self._executable.run(self._maker.poison(request, self._case.poison_id))
            self._executable.run(self._maker.poison_null_block(self._case.poison_id))


# --- sampling -----------------------------------------------------------------------------------


def _sampling_check(backend: Backend, case: SamplingCase) -> _Check:
    program, weights = case.program()
    return _Check(
        case.op,
        case.name,
        DType.F32,
        lambda: first_refusal(backend, program.ops, weights),
        lambda: _measure_sampling(backend, case),
    )


def _measure_sampling(backend: Backend, case: SamplingCase) -> _Outcome:
    num_rows = len(case.records)
    executable = _compile_sampling(backend, case)
    executable.run(case.batch(()))  # a step that wants no logits is a step like any other
    together = _Sampled.of(executable.run(case.batch(range(num_rows))))
    alone = [_Sampled.of(executable.run(case.batch((row,)))) for row in range(num_rows)]
    differs = any(not together.same_row(row, single) for row, single in enumerate(alone))
    expected = [
        oracles.sample(row, record) for row, record in zip(case.logits, case.records, strict=True)
    ]
    return _Outcome(
        error=max(together.logprob_error(i, row, case) for i, row in enumerate(expected)),
        bound=LOGPROB_BOUND,
        differing=("alone",) if differs else (),
        digest=together.digest(),
        complaint=together.wrong_tokens(expected),
    )


def _compile_sampling(backend: Backend, case: SamplingCase) -> Executable:
    program, weights = case.program()
    cache = backend.allocate_kv(KVPlan((), (), BLOCK_SIZE))
    num_rows = len(case.records)
    capacity = Capacity(num_rows, num_rows, MAX_LOGIT_ROWS, max_model_len=num_rows)
    return backend.compile(program, weights, cache, capacity)


@dataclass(frozen=True, slots=True)
class _Sampled:
    """A copy of a step's result, which is valid only until the next step."""

    token_ids: npt.NDArray[np.int32]
    logprobs: F32
    top_ids: npt.NDArray[np.int32]
    top_logprobs: F32

    @classmethod
    def of(cls, result: StepResult) -> _Sampled:
        return cls(
            result.token_ids.copy(),
            result.logprobs.copy(),
            result.top_ids.copy(),
            result.top_logprobs.copy(),
        )

    def same_row(self, row: int, single: _Sampled) -> bool:
        """Whether `single`, a step of one row, is this row bit for bit."""
        width = single.top_ids.shape[1]
        return (
            self.token_ids[row] == single.token_ids[0]
            and np.array_equal(self.logprobs[row], single.logprobs[0], equal_nan=True)
            and np.array_equal(self.top_ids[row, :width], single.top_ids[0])
            and np.array_equal(
                self.top_logprobs[row, :width], single.top_logprobs[0], equal_nan=True
            )
        )

    def wrong_tokens(self, expected: Sequence[oracles.SampledRow]) -> str:
        """Which tokens are wrong beyond doubt, or an empty string."""
        wrong = [
            f"row {row}: token {self.token_ids[row]}, not {should.token_id}"
            for row, should in enumerate(expected)
            if self.token_ids[row] != should.token_id and should.margin > NEAR_MISS
        ]
        return "; ".join(wrong[:3])

    def logprob_error(self, row: int, should: oracles.SampledRow, case: SamplingCase) -> float:
        """The largest error of a log-probability in this row; infinite where ids are wrong."""
        num_logprobs = case.records[row].num_logprobs
        if num_logprobs < 0:
            return 0.0 if np.isnan(self.logprobs[row]) else float("inf")
        should_be = float(should.logprobs[self.token_ids[row]])
        chosen = abs(float(self.logprobs[row]) - should_be)
        count = min(num_logprobs, len(should.logprobs))
        ids = self.top_ids[row, :count]
        best = np.argsort(-case.logits[row], kind="stable")[:count]
        if not np.array_equal(ids, best):
            return float("inf")
        errors = np.abs(self.top_logprobs[row, :count] - should.logprobs[ids])
        return max(chosen, float(errors.max(initial=0.0)))

    def digest(self) -> str:
        return _digest(self.token_ids, self.logprobs, self.top_ids, self.top_logprobs)


def _digest(*arrays: npt.NDArray[np.generic]) -> str:
    joined = hashlib.sha256()
    for array in arrays:
        joined.update(array.tobytes())
    return joined.hexdigest()[:16]
