"""Sampled tokens follow the distribution that the row asks for.

Chi-square over 1,500 draws per case. Seeds are fixed, so nothing is left to chance; drawn anew,
a correct sampler would fail each case with probability 0.001.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hasten.kernels.conformance.oracles import SamplingRecord
from hasten.kernels.conformance.sampling_cases import sampling_rows
from hasten.kernels.reference.sample import sample_rows
from scipy.stats import chisquare

NUM_DRAWS = 1500
LOGITS = np.array([2.0, 1.5, 1.4, 0.3, 0.0, -0.5, -1.0, -1.2, -3.0], dtype=np.float32)

CASES = {
    "plain": (SamplingRecord(temperature=1.0), range(9)),
    "temperature 2": (SamplingRecord(temperature=2.0), range(9)),
    "top_k": (SamplingRecord(temperature=1.0, top_k=4), range(4)),
    "top_p": (SamplingRecord(temperature=1.0, top_p=0.85), range(4)),
    "min_p": (SamplingRecord(temperature=1.0, min_p=0.12), range(5)),
    "all filters": (SamplingRecord(temperature=0.7, min_p=0.05, top_k=4, top_p=0.9), range(3)),
}


def expected_probabilities(record: SamplingRecord, kept: range) -> npt.NDArray[np.float64]:
    weights = np.exp(LOGITS.astype(np.float64) / record.temperature)
    weights[np.setdiff1d(np.arange(len(LOGITS)), kept)] = 0
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


def draw(records: list[SamplingRecord]) -> npt.NDArray[np.intp]:
    """How often each token was drawn."""
    logits = torch.from_numpy(LOGITS).expand(len(records), -1)
    token_ids = sample_rows(logits, sampling_rows(records, len(LOGITS))).token_ids
    return np.bincount(token_ids, minlength=len(LOGITS))


@pytest.mark.parametrize("case", ["plain", "top_k"])
def test_draws_differ_by_each_part_of_the_counter(case: str) -> None:
    record, kept = CASES[case]
    draws = range(NUM_DRAWS)
    check([replace(record, seed=i) for i in draws], record, kept)
    check([replace(record, position=i) for i in draws], record, kept)
    check([replace(record, sample_idx=i) for i in draws], record, kept)


@pytest.mark.parametrize("case", CASES)
def test_filtered_draws(case: str) -> None:
    record, kept = CASES[case]
    records = [replace(record, seed=977, position=1 + i) for i in range(NUM_DRAWS)]
    check(records, record, kept)


def check(records: list[SamplingRecord], record: SamplingRecord, kept: range) -> None:
    counts = draw(records)
    expected = expected_probabilities(record, kept)
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    assert chisquare(counts[possible], NUM_DRAWS * expected[possible]).pvalue > 0.001
