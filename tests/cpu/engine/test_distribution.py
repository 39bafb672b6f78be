"""Sampled tokens follow the model's distribution, through the whole engine.

The expected distribution comes from the log-probabilities that the engine itself reports of the
raw logits (a vocabulary of 20, so the top 20 are all of them); filters are applied to it here, in
the plainest way. Seeds are fixed: with 6 cases at p = 0.001 the chance that a right sampler would
have failed when they were chosen is 0.6 %.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hasten.core.params import GenerationParams
from hasten.kernels.dtypes import DType
from scipy.stats import chisquare

from tests.helpers.engines import ask, run_requests
from tests.helpers.random_models import random_model, tiny_config
from tests.helpers.workbench import Workbench

VOCAB_SIZE = 20
NUM_REQUESTS = 16
N = 128
PROMPT = [3, 1, 4, 1, 5]
F64 = npt.NDArray[np.float64]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1, "top_k": 12, "top_p": 0.9},
    ],
    ids=str,
)
def test_samples_follow_the_distribution(kernels: str, fields: dict[str, Any]) -> None:
    model = random_model(tiny_config(vocab_size=VOCAB_SIZE), seed=3)
    bench = Workbench.make(model, kernels, DType.F32, num_blocks=64, max_model_len=64)
    requests = [
        ask(
            f"r{seed}",
            PROMPT,
            GenerationParams(max_tokens=1, seed=seed, n=N, logprobs=20, **fields),
        )
        for seed in range(NUM_REQUESTS)
    ]
    answers = run_requests(bench.engine(), requests)
    entry = answers["r0", 0].logprobs[0]
    logprobs = np.zeros(VOCAB_SIZE)
    logprobs[entry.top_token_ids] = entry.top_logprobs
    expected = filtered(logprobs, **fields)
    counts = Counter(answer.token_ids[0] for answer in answers.values())
    observed = np.array([counts[token_id] for token_id in range(VOCAB_SIZE)])
    assert observed[expected == 0].sum() == 0
    assert p_value(observed, expected) > 0.001


def filtered(
    logprobs: F64, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> F64:
    """Probabilities after temperature, min_p, top_k and top_p, in this order."""
    probs = np.exp(logprobs / temperature)
    probs[probs < min_p * probs.max()] = 0.0
    order = np.argsort(-probs, kind="stable")
    if top_k:
        probs[order[top_k:]] = 0.0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= top_p]] = 0.0
    kept: F64 = probs / probs.sum()
    return kept


def p_value(observed: npt.NDArray[np.int64], expected: F64) -> float:
    """Chi-square with rare tokens pooled, so that every cell expects at least five."""
    expected = expected * observed.sum()
    common = expected >= 5
    cells = [*observed[common], observed[~common].sum()]
    means = [*expected[common], expected[~common].sum()]
    if means[-1] == 0:
        cells, means = cells[:-1], means[:-1]
    return float(chisquare(cells, means).pvalue)
