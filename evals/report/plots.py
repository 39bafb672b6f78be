"""Small SVG plots that need nothing but the page they stand in.

Drawn 360 units wide, so that their letters can be read on a telephone; colours are CSS variables of
the page. Exercised by `pytest tests/unit/evals/test_report.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from hasten.evals.report.wording import number

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 34


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; `colour` is the name of a CSS variable."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values [0, high] to places [begin, end]."""

    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        return self.begin + (self.end - self.begin) * min(value / self.high, 1.0)

    @property
    def step(self) -> float:
        """A round distance of ticks, so that there are three to six."""
        unit = 10.0 ** math.floor(math.log10(self.high / 3))
        return unit * next(m for m in (1, 2, 5, 10) if self.high / (m * unit) <= 6)

    @property
    def decimals(self) -> int:
        return max(0, -math.floor(math.log10(self.step) + 1e-9))

    def ticks(self) -> list[float]:
        return [i * self.step for i in range(int(self.high / self.step + 1e-9) + 1)]


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_title: str,
    y_title: str,
    limit: float | None = None,
) -> str:
    """Curves from the origin up, with a dashed line at `limit`."""
    x = _Axis(max(max(line.xs) for line in lines) or 1.0, LEFT, WIDTH - RIGHT)
    top = max(*(max(line.ys) for line in lines), limit or 0.0) or 1.0
    y = _Axis(1.05 * top, HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x, y, x_title, y_title), *(_curve(line, x, y) for line in lines)]
    if limit is not None:
        parts.append(
            f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
            f'y1="{y.at(limit):.1f}" y2="{y.at(limit):.1f}"/>'
        )
    legend = "".join(
        f'<span><i style="background:var(--{line.colour})"></i>{escape(line.label)}</span>'
        for line in lines
    )
    if limit is not None:
        legend += f'<span><i class="dashed"></i>limit {number(limit)}</span>'
    return (
        f'<figure class="plot"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}</svg><div class="legend">{legend}</div></figure>'
    )


def _grid(x: _Axis, y: _Axis, x_title: str, y_title: str) -> list[str]:
    parts = []
    for value in y.ticks():
        at = f"{y.at(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        label = f"{value:.{y.decimals}f}"
        parts.append(f'<text x="{LEFT - 5}" y="{at}" dy="4" class="end">{label}</text>')
    for value in x.ticks():
        place = f'x="{x.at(value):.1f}" y="{HEIGHT - BOTTOM + 14}"'
        parts.append(f'<text {place} class="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" class="middle">{escape(x_title)}</text>')
    parts.append(f'<text x="2" y="9">{escape(y_title)}</text>')
    return parts


def _curve(line: Line, x: _Axis, y: _Axis) -> str:
    places = [(x.at(a), y.at(b)) for a, b in zip(line.xs, line.ys, strict=True)]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in places)
    style = f'style="--line:var(--{line.colour})"'
    return f'<g class="curve" {style}><polyline points="{path}"/>{dots}</g>'


def interval(lower: float, estimate: float, upper: float, limit: float) -> str:
    """An interval against its limit, which stands at two thirds of the width."""
    span = 1.5 * limit if limit > 0 else max(upper, 1.0) * 1.5
    low, middle, high, mark = (
        100.0 * min(max(value / span, 0.0), 1.0) for value in (lower, estimate, upper, limit)
    )
    return (
        '<svg class="interval" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
        f'<line class="axis" x1="0" x2="100" y1="6" y2="6"/>'
        f'<line class="range" x1="{low:.1f}" x2="{max(high, low + 0.5):.1f}" y1="6" y2="6"/>'
        f'<rect class="dot" x="{max(middle - 0.7, 0):.1f}" y="2" width="1.4" height="8"/>'
        f'<line class="limit" x1="{mark:.1f}" x2="{mark:.1f}" y1="0" y2="12"/></svg>'
    )


def pair_bars(rows: Sequence[tuple[str, float, float]]) -> str:
    """Baseline and candidate shares, one row per task."""
    parts = []
    for name, base, cand in rows:
        bars = "".join(
            f'<div class="bar"><b style="width:{100 * share:.1f}%;background:var(--{colour})"></b>'
            f"<span>{100 * share:.1f} %</span></div>"
            for share, colour in ((base, "baseline"), (cand, "candidate"))
        )
        parts.append(f'<div class="bars"><div>{escape(name)}</div><div>{bars}</div></div>')
    return "".join(parts)
