"""What the machine can do at most: measured on every instruction set."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.kernels.cpu import CpuBackend
from hasten.kernels.cpu.limits import largest_cache_bytes, measure_limits


def test_limits_are_measured(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.kernels.cpu.limits.MIN_READ_BYTES", 1 << 20)
    monkeypatch.setattr("hasten.kernels.cpu.limits.largest_cache_bytes", lambda: 0)
    limits = measure_limits(CpuBackend(2, isa=isa))
    assert limits.bytes_per_s > 1e6
    assert limits.multiply_adds_per_s > 1e6


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    assert largest_cache_bytes(tmp_path) == 0
    for index, size in enumerate(("32K", "1024K", "32768K")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(f"{size}\n")
    assert largest_cache_bytes(tmp_path) == 32 << 20
