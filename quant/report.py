"""What quantising did to each layer, as JSON, as a table and as a plot.

Exercised by `pytest tests/unit/quant/test_report.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

WIDTH, HEIGHT, MARGIN = 720, 260, 44


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One finished layer. `relative_error` is the share of what the layer adds that is wrong."""

    layer_idx: int
    relative_error: float
    seconds: float
    largest_k: float
    largest_v: float


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """A finished run: bytes of all layers before (as bf16) and after, and what became of each."""

    scheme: str
    group_size: int | None
    num_calibration_tokens: int
    bf16_bytes: int
    quantized_bytes: int
    layers: tuple[LayerReport, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """A short summary: sizes, the mean error and the three worst layers."""
        worst = sorted(self.layers, key=lambda layer: -layer.relative_error)[:3]
        mean = sum(layer.relative_error for layer in self.layers) / len(self.layers)
        share = self.quantized_bytes / self.bf16_bytes
        names = ", ".join(f"{layer.layer_idx} ({layer.relative_error:.4f})" for layer in worst)
        return [
            f"layers       {self.quantized_bytes / 2**20:.1f} MiB, {share:.1%} of bf16",
            f"layer error  {mean:.4f} on average; worst: {names}",
            f"time         {sum(layer.seconds for layer in self.layers):.1f} s in layers",
        ]

    def plot(self) -> str:
        """The layers' errors as bars: one self-contained SVG."""
        errors = [layer.relative_error for layer in self.layers]
        return bar_plot(errors, f"{self.scheme}: relative error of each layer's output")


def bar_plot(values: Sequence[float], title: str) -> str:
    """Bars from 0 to the largest value, numbered from 0, with three grid lines."""
    top = max(*values, 1e-12)
    step = (WIDTH - 2 * MARGIN) / len(values)
    inner = HEIGHT - 2 * MARGIN
    bars = "".join(
        f'<rect x="{MARGIN + step * idx + step * 0.1:.1f}" width="{step * 0.8:.1f}" '
        f'y="{HEIGHT - MARGIN - inner * value / top:.1f}" height="{inner * value / top:.1f}">'
        f"<title>layer {idx}: {value:.5f}</title></rect>"
        for idx, value in enumerate(values)
    )
    grid = "".join(_grid_line(share, top) for share in (0.0, 0.5, 1.0))
    labels = "".join(
        f'<text x="{MARGIN + step * (idx + 0.5):.1f}" y="{HEIGHT - MARGIN + 16}" '
        f'text-anchor="middle">{idx}</text>'
        for idx in range(0, len(values), max(1, len(values) // 15))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{MARGIN}" y="24" font-size="14">{title}</text>{grid}'
        f'<g fill="#3b6ea5">{bars}</g>{labels}</svg>\n'
    )


def _grid_line(share: float, top: float) -> str:
    y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share
    return (
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>'
        f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:.3g}</text>'
    )
