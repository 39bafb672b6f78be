"""Curves through measured points: rising, and free of what noise makes of small differences."""

from __future__ import annotations

import pytest
from hasten.core.curve import Curve


def test_a_curve_passes_through_its_points() -> None:
    curve = Curve()
    assert curve.at(7) == 0.0
    curve.set(8, 4.0)
    curve.set(2, 1.0)
    assert [curve.at(n) for n in (0, 1, 2, 5, 8, 10)] == [0.0, 0.5, 1.0, 2.5, 4.0, 5.0]
    curve.set(8, 1.0)
    assert curve.at(100) == 1.0


def test_a_curve_never_falls() -> None:
    curve = Curve()
    for count, seconds in ((1, 1.0), (2, 3.0), (3, 2.0), (4, 1.6), (8, 4.0)):
        curve.set(count, seconds)
    assert [curve.at(n) for n in (1, 2, 3, 4, 8)] == pytest.approx([1.0, 1.6, 2.2, 2.56, 4.0])
    curve.set(2, 1.5)
    assert [curve.at(n) for n in (1, 2, 8)] == pytest.approx([1.0, 1.5, 4.0])


def test_a_curve_does_not_fall_below_its_first_points() -> None:
    curve = Curve()
    for count, seconds in ((1, 4.0), (2, 1.7), (3, 2.1), (4, 2.1), (8, 3.6)):
        curve.set(count, seconds)
    assert curve.at(0) == 0.0
    assert curve.at(1) == pytest.approx(2.475)
    assert curve.at(4) == pytest.approx(2.475, rel=0.2)


def test_what_one_more_of_many_costs_does_not_hang_on_noise() -> None:
    curve = Curve()
    for count, seconds in ((24, 24.0), (32, 32.5), (33, 32.4), (34, 34.5), (48, 48.0)):
        curve.set(count, seconds)
    for count in range(24, 48):
        assert 0.8 < curve.at(count + 1) - curve.at(count) < 1.3


def test_a_stair_stays_one() -> None:
    curve = Curve()
    for count, seconds in ((15, 10.0), (16, 10.1), (17, 14.0), (18, 14.1)):
        curve.set(count, seconds)
    assert curve.at(17) - curve.at(16) > 1.9


def test_beyond_the_last_points_of_a_curve_their_noise_does_not_count() -> None:
    curve = Curve()
    for count, seconds in ((64, 64.0), (128, 128.0), (240, 250.0), (256, 250.0)):
        curve.set(count, seconds)
    assert curve.at(1024) > 900


def test_what_was_asked_before_a_change_is_seen_to_change() -> None:
    curve = Curve()
    curve.set(1, 1.0)
    curve.set(8, 4.0)
    assert curve.at(4) > 1.0
    curve.scale(2.0)
    assert curve.at(8) == pytest.approx(8.0)
    curve.set(4, 6.0)
    assert curve.at(4) == pytest.approx(6.0)
