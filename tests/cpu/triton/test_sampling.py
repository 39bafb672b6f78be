"""Sampling without a sort finds what sorting finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hasten.kernels.conformance import oracles, suite
from hasten.kernels.conformance.oracles import SamplingRecord
from hasten.kernels.conformance.sampling_cases import SamplingCase, sampling_cases
from hasten.kernels.triton.backend import TritonBackend


def run(backend: TritonBackend, case: SamplingCase, rows: list[int]) -> suite._Sampled:
    executable = suite._compile_sampling(backend, case)
    return suite._Sampled.of(executable.run(case.batch(rows)))


@pytest.fixture(scope="module")
def mixed() -> SamplingCase:
    """Every behaviour of the op in one batch."""
    return next(case for case in sampling_cases() if "all of these together" in case.name)


def test_rows_that_ask_for_everything(backend: TritonBackend, mixed: SamplingCase) -> None:
    expected = [
        oracles.sample(row, record) for row, record in zip(mixed.logits, mixed.records, strict=True)
    ]
    together = run(backend, mixed, list(range(len(mixed.records))))
    assert together.wrong_tokens(expected) == ""
    errors = [together.logprob_error(i, row, mixed) for i, row in enumerate(expected)]
    assert max(errors) <= suite.LOGPROB_BOUND
    for row in (2, 13):
        assert together.same_row(row, run(backend, mixed, [row]))


@pytest.fixture
def short_blocks(backend: TritonBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are longer than a block: programs join what they found, counts and sums go on."""
    short = {**backend.table.entries, "sample": replace(backend.table["sample"], block_in=16)}
    monkeypatch.setattr(backend.table, "entries", short)


@pytest.mark.usefixtures("short_blocks")
def test_ties_go_to_the_lowest_id(backend: TritonBackend) -> None:
    case = next(case for case in sampling_cases() if case.name == "ties")
    result = run(backend, case, list(range(len(case.records))))
    expected = [
        oracles.sample(row, record) for row, record in zip(case.logits, case.records, strict=True)
    ]
    assert result.token_ids.tolist() == [row.token_id for row in expected]
    assert result.top_ids[0].tolist() == [10, 17, 24, 31, 38, 45, 0, 1, 2]


@pytest.mark.usefixtures("short_blocks")
def test_rows_of_several_blocks(backend: TritonBackend) -> None:
    rng = np.random.default_rng(11)
    logits = (np.round(4 * rng.standard_normal((8, 100))) / 2).astype(np.float32)
    drawn = SamplingRecord(temperature=1.0, seed=9, num_logprobs=3)
    records = (
        replace(drawn, top_k=7),
        replace(drawn, top_p=0.6, position=2),
        replace(drawn, top_k=20, top_p=0.7, min_p=0.02, position=3),
        SamplingRecord(num_logprobs=5),
        SamplingRecord(
            counts=tuple((i, 1 + i % 3) for i in range(5, 100, 7)), presence_penalty=9.0
        ),
        SamplingRecord(bias=tuple((i, 7.0) for i in (3, 50, 99)), num_logprobs=4),
        replace(drawn, allowed=(2, 17, 40, 98), top_p=0.9),
        SamplingRecord(allowed=(97,)),
    )
    case = SamplingCase("sample", "several blocks", logits, records)
    result = run(backend, case, list(range(len(records))))
    expected = [oracles.sample(row, record) for row, record in zip(logits, records, strict=True)]
    assert result.wrong_tokens(expected) == ""
    assert max(result.logprob_error(i, row, case) for i, row in enumerate(expected)) <= 2e-5


@pytest.mark.usefixtures("short_blocks")
def test_a_row_of_nan_is_refused(backend: TritonBackend) -> None:
    logits = np.zeros((2, 40), dtype=np.float32)
    logits[1, 4] = np.nan
    case = SamplingCase("sample", "nan", logits, (SamplingRecord(),) * 2)
    with pytest.raises(FloatingPointError, match=r"the logits of row 1 hold nan"):
        run(backend, case, [0, 1])
