"""Prompts for training text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.spec.training.prompts import built_in_prompts, read_prompts


def test_the_built_in_set_is_several_hundred_different_prompts() -> None:
    prompts = built_in_prompts(0)
    assert len(prompts) == len(set(prompts)) > 900
    assert not any("{" in prompt for prompt in prompts)
    assert sorted(built_in_prompts(1)) == sorted(prompts)
    assert built_in_prompts(1) != prompts


def test_files_hold_lines_of_text_or_json(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('Hello\n\n{"prompt": "Two\\nlines"}\n')
    assert read_prompts(path) == ["Hello", "Two\nlines"]
    path.write_text('{"turns": ["First", "second"]}\n')
    assert read_prompts(path) == ["First"]
    for wrong in ('{"text": "?"}', '{"turns": []}', '{"turns": 1}'):
        path.write_text(f"Hello\n{wrong}\n")
        with pytest.raises(ValueError, match="line 2"):
            read_prompts(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="no prompt"):
        read_prompts(path)
