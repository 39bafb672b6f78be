"""The report of a quantising run."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hasten.quant.report import LayerReport, QuantizeReport, bar_plot

REPORT = QuantizeReport(
    scheme="int4-awq",
    group_size=64,
    num_calibration_tokens=1024,
    bf16_bytes=4000,
    quantized_bytes=1000,
    layers=tuple(LayerReport(idx, 0.01 * idx, 1.5, 3.0, 4.0) for idx in range(1, 6)),
)


def test_lines_name_the_worst_layers() -> None:
    text = "\n".join(REPORT.lines())
    assert "25.0% of bf16" in text
    assert "5 (0.0500), 4 (0.0400), 3 (0.0300)" in text
    assert "7.5 s" in text


def test_the_plot_is_svg_with_a_bar_per_layer() -> None:
    root = ET.fromstring(REPORT.plot())
    titles = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert len(titles) == 5
    assert titles[-1] == "layer 4: 0.05000"


def test_zeros_make_a_plot_too() -> None:
    assert "layer 0: 0.00000" in bar_plot([0.0, 0.0], "flat")
