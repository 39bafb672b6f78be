"""The comparison as a page and a plot: docs/performance.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
from hasten.evals.peers.measure import OWN, Figure

NOTE = (
    "In one process: prompts of 128 random tokens, 64 tokens each; decoding is the tokens after "
    "the first over the time that they add to a run of one token. Over HTTP: chat prompts, 128 "
    "tokens each, closed loop, no speculation but where it is named. llama.cpp reads the same Q4_1 "
    "file, vLLM the same weights in bf16, OpenVINO int4 in groups of 64. Memory "
    "counts pages that several processes map once."
)


def write_report(figures: Sequence[Figure], repeats: int, folder: Path) -> None:
    """`performance.md` and `performance.svg`. Raises OSError."""
    engines = list(dict.fromkeys(name for figure in figures for name in figure.samples))
    lines = [
        "# Performance",
        "",
        f"Measured {datetime.now(UTC):%Y-%m-%d} by `make bench-peers` on {machine()}: the embedded "
        f"model, greedy, medians of {repeats}, engines taking turns within each repetition. "
        "`ratio`: this project against the best of the others, over 1 is better.",
        "",
        "![The table below as ratios](performance.svg)",
        "",
        f"| work | unit | {' | '.join(engines)} | ratio |",
        f"|---|---|{'---:|' * len(engines)}---:|",
        *(_row(figure, engines) for figure in figures),
        "",
        NOTE,
        "",
    ]
    (folder / "performance.md").write_text("\n".join(lines), encoding="utf-8")
    _draw(figures, folder / "performance.svg")


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores of {_processor()}, {memory:.0f} GiB"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


def _row(figure: Figure, engines: Sequence[str]) -> str:
    cells = [
        f"{figure.median_of(name):,.{_digits(figure)}f}" if name in figure.samples else ""
        for name in engines
    ]
    ratio = figure.ratio(OWN)
    shown = "" if ratio is None else f"{ratio:.2f}"
    return f"| {figure.name} | {figure.unit} | {' | '.join(cells)} | {shown} |"


def _digits(figure: Figure) -> int:
    return 1 if figure.unit in {"s", "ms"} else 0


def _draw(figures: Sequence[Figure], path: Path) -> None:
    from matplotlib.figure import Figure as Plot

    rows = [(figure.name, ratio) for figure in figures if (ratio := figure.ratio(OWN)) is not None]
    plot = Plot(figsize=(9, 0.4 * len(rows) + 1), layout="constrained")
    axes = plot.subplots()
    axes.barh([name for name, _ in rows], [ratio for _, ratio in rows])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set(xlabel="times as good as the best of the others")
    axes.invert_yaxis()
    plot.savefig(path)
