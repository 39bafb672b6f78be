from __future__ import annotations

import numpy as np
import pytest
from hasten.evals.distribution import FullDistribution, TopDistribution, divergence, is_exact
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.special import log_softmax, rel_entr


def full(rng: np.random.Generator, num_rows: int = 4, vocab: int = 100) -> FullDistribution:
    logits = rng.normal(0.0, 3.0, (num_rows, vocab)).astype(np.float32)
    return FullDistribution.from_logits(logits, rng.integers(0, vocab, num_rows).tolist())


def test_log_probabilities_are_those_of_a_softmax() -> None:
    logits = np.random.default_rng(0).normal(0.0, 30.0, (5, 1000)).astype(np.float32)
    made = FullDistribution.from_logits(logits, [0, 1, 2, 3, 999])
    expected = log_softmax(logits.astype(np.float64), axis=1)
    np.testing.assert_allclose(made.logprobs, expected, atol=2e-5)
    np.testing.assert_allclose(
        made.token_logprobs, expected[range(5), [0, 1, 2, 3, 999]], atol=2e-5
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_refused(bad: float) -> None:
    logits = np.zeros((2, 10), np.float32)
    logits[1, 3] = bad
    with pytest.raises(ValueError, match="NaN or infinity"):
        FullDistribution.from_logits(logits, [0, 0])


def test_divergence_of_full_distributions_is_kl() -> None:
    rng = np.random.default_rng(1)
    base, cand = full(rng), full(rng)
    expected = rel_entr(
        np.exp(base.logprobs.astype(np.float64)), np.exp(cand.logprobs.astype(np.float64))
    ).sum(axis=1)
    np.testing.assert_allclose(divergence(base, cand), expected, rtol=1e-4)
    np.testing.assert_array_equal(divergence(base, base), 0.0)
    assert is_exact(base, cand)


@settings(max_examples=40, deadline=None)
@given(seed=some.integers(0, 10_000), vocab=some.sampled_from([3, 70, 200]))
def test_what_is_kept_bounds_kl_from_below(seed: int, vocab: int) -> None:
    rng = np.random.default_rng(seed)
    base, cand = full(rng, vocab=vocab), full(rng, vocab=vocab)
    exact = divergence(base, cand)
    for known_base, known_cand in (
        (base.kept(), cand),
        (base, cand.kept()),
        (base.kept(), cand.kept()),
    ):
        bound = divergence(known_base, known_cand)
        assert not is_exact(known_base, known_cand)
        assert (bound <= exact + 1e-4).all()
        assert (bound >= 0.0).all()


def test_the_bound_is_close_where_little_is_left_out() -> None:
    rng = np.random.default_rng(2)
    base = full(rng, num_rows=50, vocab=400)
    noise = rng.normal(0.0, 0.2, base.logprobs.shape).astype(np.float32)
    cand = FullDistribution.from_logits(base.logprobs + noise, base.token_ids.tolist())
    exact, bound = divergence(base, cand), divergence(base.kept(), cand)
    assert bound.mean() > 0.8 * exact.mean()


def test_kept_are_the_most_likely_first_ties_by_id() -> None:
    logits = np.zeros((1, 100), np.float32)
    logits[0, [7, 50, 99]] = 3.0, 5.0, 3.0
    kept = FullDistribution.from_logits(logits, [1]).kept()
    assert kept.ids[0, :5].tolist() == [50, 7, 99, 0, 1]
    assert kept.top_ids.tolist() == [50]
    assert (np.diff(kept.logprobs[0]) <= 0).all()


def test_missing_alternatives_are_no_alternatives() -> None:
    base = TopDistribution(
        np.array([-0.1]), np.array([[3, -1]], np.int32), np.array([[-0.1, -np.inf]])
    )
    cand = TopDistribution(np.array([-0.2]), np.array([[3, 5]], np.int32), np.array([[-0.2, -2.0]]))
    p, q = np.exp(-0.1), np.exp(-0.2)
    expected = p * 0.1 + (1 - p) * np.log((1 - p) / (1 - q))
    assert divergence(base, cand)[0] == pytest.approx(expected)
