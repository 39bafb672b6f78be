from __future__ import annotations

from pathlib import Path

import pytest
from hasten.evals.rows import ChoiceRow, DataError, DataFolder, PromptRow

GOOD = '{"query": "q", "choices": ["a", "b"], "gold": 1}'


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"query": "q", "choices": ["a"], "gold": 1}', r"rows\.jsonl:2: gold is 1, there are 1"),
        ('{"query": "q", "choices": ["a"]}', r"rows\.jsonl:2: .*`gold`"),
        ('{"query": 3, "choices": ["a"], "gold": 0}', r"rows\.jsonl:2: .*`\$\.query`"),
        ("not json", r"rows\.jsonl:2: JSON is malformed"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, bad: str, message: str) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{GOOD}\n{bad}\n")
    with pytest.raises(DataError, match=message):
        DataFolder(tmp_path).rows("rows.jsonl", ChoiceRow)


def test_a_bad_row_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(f"{GOOD}\nnot json\n")
    assert len(DataFolder(tmp_path).rows("rows.jsonl", ChoiceRow, limit=1)) == 1


def test_files_are_hashed_as_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(GOOD)
    data = DataFolder(tmp_path)
    data.rows("rows.jsonl", ChoiceRow)
    assert list(data.hashes) == ["rows.jsonl"]
    before = data.fingerprint("rows.jsonl")
    (tmp_path / "rows.jsonl").write_text(GOOD + "\n")
    assert data.fingerprint("rows.jsonl") != before


@pytest.mark.parametrize(
    ("root", "name", "message"),
    [(None, "a.jsonl", "no data folder is set"), (Path(), "absent.jsonl", "no such file")],
)
def test_missing_data_is_an_error(root: Path | None, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataFolder(root).rows(name, ChoiceRow)


def test_empty_and_binary_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    data = DataFolder(tmp_path)
    with pytest.raises(DataError, match="holds no row"):
        data.rows("empty.jsonl", ChoiceRow)
    with pytest.raises(DataError, match="not UTF-8 at byte 0"):
        data.texts("binary.txt")


def test_the_shipped_data_reads_well() -> None:
    data = DataFolder()
    prompts = data.rows("hasten:prompts.jsonl", PromptRow)
    assert len({row.id for row in prompts}) == len(prompts) == 48
    texts = data.texts("hasten:text")
    assert len(texts) >= 8
    assert sum(len(text) for _, text in texts) > 20_000
