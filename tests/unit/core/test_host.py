"""Free memory, within the limits of a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.core.host import available_memory_bytes, release_free_memory


def test_a_container_limit_is_kept(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_memory_bytes(tmp_path) == 2_000_000


def test_a_full_container_has_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("1001\n")
    assert available_memory_bytes(tmp_path) == 0


@pytest.mark.parametrize("limit", ["max\n", None])
def test_without_a_limit_the_machine_decides(tmp_path: Path, limit: str | None) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("5\n")
    assert available_memory_bytes(tmp_path) > 0


def test_giving_memory_back_can_be_repeated() -> None:
    for _ in range(2):
        release_free_memory()
