"""The figures of `hasten bench spec` as a table and a plot.

Exercised by `pytest tests/cpu/api/test_spec_bench.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.spec_bench import Comparison, SpecRow

HEADINGS = ("prompts", "load", "speculation", "tokens/s", "ratio", "ITL ms", "depth", "accepted")
COMPARED = ("prompts", "load", "speculation", "against", "ratio", "at least")
COLOURS = ("#64748b", "#2563eb", "#16a34a", "#d97706", "#dc2626", "#7c3aed", "#0891b2", "#be185d")
WIDTH, HEIGHT, MARGIN = 420, 260, 44


def markdown_table(rows: Sequence[SpecRow]) -> str:
    return _table(HEADINGS, [_cells(row) for row in rows])


def comparison_table(rows: Sequence[Comparison]) -> str:
    """Depths that follow the load against the fastest that do not."""
    cells = [
        (
            row.prompts,
            str(row.load),
            row.configuration,
            row.against,
            f"{row.ratio:.3f}",
            f"{row.at_least:.3f}",
        )
        for row in rows
    ]
    return _table(COMPARED, cells)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cells(row: SpecRow) -> tuple[str, ...]:
    low, high = row.ratio_range
    middle, late = row.itl_ms
    return (
        row.prompts,
        str(row.load),
        row.configuration,
        f"{row.tokens_per_s:,.0f}",
        f"{row.ratio:.2f} ({low:.2f} to {high:.2f})",
        f"{middle:.1f}, p99 {late:.1f}",
        f"{row.depth:.2f}",
        f"{row.acceptance:.0%}",
    )


def plot(rows: Sequence[SpecRow]) -> str:
    """An SVG: for each kind of prompts, tokens per second and median ITL over load."""
    kinds = list(dict.fromkeys(row.prompts for row in rows))
    names = list(dict.fromkeys(row.configuration for row in rows))
    panels = []
    for idx, kind in enumerate(kinds):
        own = [row for row in rows if row.prompts == kind]
        rates = {n: _points(own, n, rate=True) for n in names}
        gaps = {n: _points(own, n, rate=False) for n in names}
        panels.append(_panel(0, idx * HEIGHT, f"{kind}: tokens/s over load", rates))
        panels.append(_panel(WIDTH, idx * HEIGHT, f"{kind}: median ITL, ms", gaps))
    bottom = len(kinds) * HEIGHT
    legend = "".join(
        f'<text x="{20 + 130 * (i % 6)}" y="{bottom + 18 + 18 * (i // 6)}" '
        f'fill="{COLOURS[i % len(COLOURS)]}">{name}</text>'
        for i, name in enumerate(names)
    )
    height = bottom + 24 + 18 * (len(names) // 6)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">{"".join(panels)}{legend}</svg>\n'
    )


def _points(rows: Sequence[SpecRow], name: str, *, rate: bool) -> list[tuple[float, float, float]]:
    """(load, value, depth) of one configuration."""
    return [
        (row.load, row.tokens_per_s if rate else row.itl_ms[0], row.depth)
        for row in rows
        if row.configuration == name
    ]


def _panel(x: int, y: int, title: str, lines: dict[str, list[tuple[float, float, float]]]) -> str:
    """Loads on a logarithmic axis; each point of a depth that follows the load shows it."""
    points = [point for line in lines.values() for point in line]
    most_load = max(math.log2(load) for load, _, _ in points) or 1.0
    most = max(value for _, value, _ in points) or 1.0

    def place(load: float, value: float) -> tuple[float, float]:
        right = x + MARGIN + math.log2(load) / most_load * (WIDTH - 2 * MARGIN)
        return right, y + HEIGHT - MARGIN - value / most * (HEIGHT - 2 * MARGIN)

    parts = [
        f'<text x="{x + MARGIN}" y="{y + 20}" font-weight="bold">{title}</text>',
        f'<text x="{x + 4}" y="{y + MARGIN + 4}">{most:,.0f}</text>',
        f'<text x="{x + 4}" y="{y + HEIGHT - MARGIN}">0</text>',
    ]
    for load in sorted({load for load, _, _ in points}):
        at, _ = place(load, 0)
        parts.append(
            f'<text x="{at:.0f}" y="{y + HEIGHT - MARGIN + 16}" text-anchor="middle">'
            f"{load:.0f}</text>"
        )
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        at_points = [place(load, value) for load, value, _ in line]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at_points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if name.endswith("auto"):
            parts += [
                f'<text x="{a:.1f}" y="{b - 6:.1f}" fill="{colour}" text-anchor="middle">'
                f"{depth:.1f}</text>"
                for (a, b), (_, _, depth) in zip(at_points, line, strict=True)
            ]
    return "".join(parts)
