from __future__ import annotations

import numpy as np
import pytest
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder
from hasten.evals.target import Scored
from hasten.evals.token_pairs import (
    SEGMENT_LEN,
    PairedWindow,
    pair_window,
    segments,
    token_measures,
)

from tests.unit.evals.fakes import FakeTarget


def window(num_tokens: int, noise: float) -> PairedWindow:
    base, cand = FakeTarget("base"), FakeTarget("cand", noise=noise)
    pair = Pair(base, cand, DataFolder(), author=base)
    ids = tuple(np.random.default_rng(num_tokens).integers(32, 127, num_tokens).tolist())
    asked = Scored(ids, 1)
    expected = [base.distribution(asked), cand.distribution(asked)]
    return pair_window(pair, "w", ids, 1, expected)


def test_segments_cover_every_token_once() -> None:
    windows = [window(num, 0.1) for num in (5, 64, 65, 130, 200)]
    pieces = segments(windows, lambda one: one.kl)
    assert [len(p) for p in pieces if len(p) < SEGMENT_LEN // 2] == [4]
    assert np.concatenate(pieces).tolist() == [kl for one in windows for kl in one.kl]


def test_worst_tokens_are_those_of_largest_kl_with_their_text() -> None:
    made = window(80, 0.5)
    assert [worst.kl for worst in made.worst] == sorted(made.kl, reverse=True)[:3]
    worst = made.worst[0]
    assert worst.token == chr(made.token_ids[worst.position])
    assert worst.context.endswith(chr(made.token_ids[worst.position - 1]))
    assert made.kl[worst.position - made.start] == worst.kl


def test_measures_of_equal_sides_are_zero() -> None:
    measures = {m.name: m for m in token_measures("b", [window(600, 0.0)], {"kl_mean": 0.1})}
    assert measures["b.kl_mean"].limit == 0.1
    for name, value in (("kl_mean", 0.0), ("kl_max", 0.0), ("perplexity_ratio", 1.0)):
        harm = measures[f"b.{name}"].harm
        assert harm is not None
        assert harm.estimate == pytest.approx(value)
        assert harm.bound(0.95) == pytest.approx(value)
