from __future__ import annotations

import math

import numpy as np
import pytest
from hasten.evals import statistics as st
from scipy import stats


def clusters_of(rng: np.random.Generator, num: int, size: int) -> list[np.ndarray]:
    """Skewed values with a shared part per cluster; the true mean is 1 + 0.5."""
    shared = rng.exponential(0.5, size=num)
    return [rng.exponential(1.0, size=size) + part for part in shared]


def test_bootstrap_bound_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    num_trials = 150
    misses = sum(
        st.bootstrap_mean(clusters_of(rng, 30, 12), seed=trial).bound(0.95) < 1.5
        for trial in range(num_trials)
    )
    assert 0.02 * num_trials <= misses <= 0.11 * num_trials


def test_resampling_tokens_instead_of_clusters_would_be_too_sure() -> None:
    clusters = clusters_of(np.random.default_rng(2), 30, 50)
    by_cluster = st.bootstrap_mean(clusters, seed=0)
    by_token = st.bootstrap_mean([[value] for value in np.concatenate(clusters)], seed=0)
    assert by_cluster.standard_error > 1.5 * by_token.standard_error


def test_bootstrap_p_value_is_the_level_at_which_the_bound_meets_the_limit() -> None:
    bootstrap = st.bootstrap_mean(clusters_of(np.random.default_rng(3), 40, 5), seed=0)
    for level in (0.02, 0.1, 0.5, 0.8):
        assert bootstrap.p_exceeds(bootstrap.bound(level)) == pytest.approx(level, abs=0.01)


def test_bootstrap_of_equal_values_is_certain() -> None:
    bootstrap = st.bootstrap_mean([[0.0, 0.0], [0.0]], seed=0)
    assert (bootstrap.estimate, bootstrap.bound(0.95), bootstrap.bound(0.05)) == (0.0, 0.0, 0.0)
    assert bootstrap.p_exceeds(0.1) > 0.99


def test_transform_respects_the_bounds() -> None:
    clusters = clusters_of(np.random.default_rng(4), 20, 5)
    plain, changed = st.bootstrap_mean(clusters, 0), st.bootstrap_mean(clusters, 0, np.exp)
    assert changed.estimate == pytest.approx(math.exp(plain.estimate))
    assert changed.bound(0.95) == pytest.approx(math.exp(plain.bound(0.95)), rel=0.02)


def test_bootstrap_quantile_matches_a_plain_loop() -> None:
    rng = np.random.default_rng(5)
    clusters = [rng.normal(size=size) for size in (3, 7, 5, 9)]
    bootstrap = st.bootstrap_quantile(clusters, 0.9, seed=6)
    expected = []
    for row in st.resample(4, 6):
        drawn = np.concatenate([np.tile(c, int(k)) for c, k in zip(clusters, row, strict=True)])
        expected.append(np.quantile(drawn, 0.9, method="inverted_cdf"))
    np.testing.assert_allclose(bootstrap.replicates, np.sort(expected))


@pytest.mark.parametrize(("num_bad", "num"), [(0, 100), (3, 50), (50, 50)])
def test_rate_bounds_invert_the_exact_test(num_bad: int, num: int) -> None:
    upper, lower = st.rate_bound(num_bad, num, 0.95), st.rate_bound(num_bad, num, 0.05)
    assert lower <= num_bad / num <= upper
    if num_bad < num:
        assert stats.binom.cdf(num_bad, num, upper) == pytest.approx(0.05)
    if num_bad > 0:
        assert st.rate_p_exceeds(num_bad, num, lower) == pytest.approx(0.05)


def test_rule_of_three() -> None:
    assert st.rate_bound(0, 1000, 0.95) == pytest.approx(3.0 / 1000, rel=0.01)
    assert st.samples_for_clean_rate(0.003, 0.05) in range(990, 1005)


def test_detectable_rate_has_the_power_it_claims() -> None:
    rate = st.detectable_rate(1500, 0.002, 0.05, 0.9)
    rng = np.random.default_rng(7)
    caught = np.mean(
        [st.rate_p_exceeds(int(k), 1500, 0.002) <= 0.05 for k in rng.binomial(1500, rate, 4000)]
    )
    assert caught == pytest.approx(0.9, abs=0.02)


def test_paired_score_at_zero_is_mcnemar() -> None:
    assert st.paired_score(12, 5, 200, 0.0) == pytest.approx((12 - 5) / math.sqrt(12 + 5))


def test_paired_bound_without_discordant_items_is_not_zero() -> None:
    z_squared = stats.norm.ppf(0.95) ** 2
    expected = z_squared / (100 + z_squared)
    assert st.paired_loss_bound(0, 0, 100, 0.95) == pytest.approx(expected, abs=1e-6)
    assert st.paired_loss_bound(0, 0, 100, 0.05) == pytest.approx(-expected, abs=1e-6)


def test_paired_bound_covers() -> None:
    rng = np.random.default_rng(8)
    num, p_lost, p_won = 120, 0.10, 0.04
    draws = rng.multinomial(num, [p_lost, p_won, 1 - p_lost - p_won], size=600)
    misses = sum(
        st.paired_loss_bound(int(lost), int(won), num, 0.95) < p_lost - p_won
        for lost, won, _ in draws
    )
    assert 0.02 * 600 <= misses <= 0.08 * 600


@pytest.mark.parametrize(("lost", "won", "num"), [(9, 2, 60), (0, 5, 40), (30, 0, 30)])
def test_paired_p_value_and_bound_agree(lost: int, won: int, num: int) -> None:
    bound = st.paired_loss_bound(lost, won, num, 0.05)
    if abs(bound) < 0.999:
        assert st.paired_loss_p_exceeds(lost, won, num, bound) == pytest.approx(0.05, abs=1e-4)


def test_exact_mcnemar() -> None:
    assert st.mcnemar(0, 0) == 1.0
    assert st.mcnemar(10, 0) == pytest.approx(2 * 0.5**10)
    assert st.mcnemar(3, 8) == st.mcnemar(8, 3)


def test_holm_example() -> None:
    assert st.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert st.holm([]) == []


def test_planned_samples_give_the_power() -> None:
    rng = np.random.default_rng(9)
    spread, gap, num = 2.0, 0.5, 50
    needed = st.samples_for_gap(num, spread / math.sqrt(num), gap, 0.05, 0.9)
    means = rng.normal(0.0, spread, size=(2000, needed)).mean(axis=1)
    decided = means + stats.norm.ppf(0.95) * spread / math.sqrt(needed) <= gap
    assert decided.mean() == pytest.approx(0.9, abs=0.03)
