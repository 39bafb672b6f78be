"""Measured seconds as a function of a count, made fit for decisions on what one more costs.

Pure. Exercised by `pytest tests/unit/core/test_curve.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

KNOT_SPAN = 1 / 8
"""Points of a curve that lie closer than this share may be one knot."""
STAIR = 0.1
"""Unless one of them is higher by this share: there a kernel begins another tile."""
MAX_KEPT = 1024
"""Counts whose seconds are kept until the points change: the same few are asked for every step."""


class Curve:
    """Seconds as a function of a count: knots among known points, joined by lines; 0 at 0.

    What one more of many costs is a small difference of large numbers, which noise easily drowns.
    So points next to each other are one knot where they differ by less than a stair would make, and
    a curve never falls. Source: isotonic regression by pooling adjacent violators (Ayer et al.
    1955).
    """

    def __init__(self) -> None:
        self._points: dict[int, float] = {}
        self._counts = [0.0]
        self._seconds = [0.0]
        self._kept: dict[int, float] = {}

    def set(self, count: int, seconds: float) -> None:
        self._points[count] = seconds
        self._join()

    def __contains__(self, count: int) -> bool:
        """Whether it is a known point."""
        return count in self._points

    def scale(self, factor: float, above: int = 0, up_to: float = math.inf) -> None:
        """Multiply the points of these counts."""
        for count in self._points:
            if above < count <= up_to:
                self._points[count] *= factor
        self._join()

    def at(self, count: int) -> float:
        """Interpolated; beyond the last knot it goes on as over the upper half of the counts."""
        kept = self._kept.get(count)
        if kept is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            kept = self._kept[count] = self._between_knots(count)
        return kept

    def _between_knots(self, count: int) -> float:
        counts, seconds = self._counts, self._seconds
        i = bisect_left(counts, count)
        if i < len(counts):
            before = max(i - 1, 0)
        else:
            i = len(counts) - 1
            before = max(bisect_right(counts, counts[i] / 2) - 1, 0)
        if before == i:
            return seconds[i]
        slope = (seconds[i] - seconds[before]) / (counts[i] - counts[before])
        return seconds[before] + slope * (count - counts[before])

    def _join(self) -> None:
        """Find the knots."""
        self._kept.clear()
        knots: list[_Knot] = [_Knot()]
        first_count, first_s = 0, 0.0
        for count, seconds in sorted(self._points.items()):
            is_near = count <= (1 + KNOT_SPAN) * first_count
            if is_near and abs(seconds - first_s) <= STAIR * first_s:
                knots[-1].add(_Knot(count, seconds, 1))
            else:
                knots.append(_Knot(count, seconds, 1))
                first_count, first_s = count, seconds
        rising: list[_Knot] = []
        for knot in knots:
            rising.append(knot)
            while len(rising) > 1 and rising[-2].seconds > rising[-1].seconds:
                rising[-2].add(rising.pop())
        self._counts = [knot.count for knot in rising]
        self._seconds = [knot.seconds for knot in rising]
        if len(rising) > 1 and (least := min(self._points)) < rising[1].count:
            # From the least point that was measured to its knot there is nothing to gain.
            self._counts.insert(1, least)
            self._seconds.insert(1, rising[1].seconds)


@dataclass(slots=True)
class _Knot:
    """The mean of `num_points` of a curve."""

    count: float = 0.0
    seconds: float = 0.0
    num_points: int = 1

    def add(self, other: _Knot) -> None:
        total = self.num_points + other.num_points
        share = other.num_points / total
        self.count += (other.count - self.count) * share
        self.seconds += (other.seconds - self.seconds) * share
        self.num_points = total
