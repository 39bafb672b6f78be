from __future__ import annotations

from pathlib import Path

import pytest
from hasten.evals.journal import Journal, JournalError


def write(path: Path, num: int) -> None:
    with Journal(path) as journal:
        for i in range(num):
            journal.put(f"key {i}".encode(), bytes([i]) * (i + 1))


def test_what_was_put_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.journal"
    write(path, 5)
    with Journal(path) as journal:
        assert len(journal) == 5
        assert journal.get(b"key 3") == b"\x03" * 4
        assert journal.get(b"other") is None


def test_a_torn_end_is_cut_off_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    write(path, 3)
    whole = path.read_bytes()
    with Journal(path) as journal:
        two = len(whole) - (8 + 32 + len(b"key 2") + 3)
        assert journal.get(b"key 2") is not None
    for length in range(two, len(whole)):
        path.write_bytes(whole[:length])
        with Journal(path) as journal:
            assert len(journal) == 2
            journal.put(b"new", b"value")
        with Journal(path) as journal:
            assert journal.get(b"new") == b"value"
            assert len(journal) == 3


def test_damage_in_the_middle_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    write(path, 3)
    damaged = bytearray(path.read_bytes())
    damaged[45] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(JournalError, match=r"a\.journal: the frame at byte 0 is damaged"):
        Journal(path)


def test_two_runs_cannot_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path), pytest.raises(JournalError, match="another run"):
        Journal(path)


def test_a_full_disk_is_an_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    write(path, 2)
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    journal = Journal(path)
    journal._file.close()
    journal._file = full.open("ab+", buffering=0)
    with pytest.raises(JournalError, match="cannot be written: No space left"):
        journal.put(b"x", b"y")
    assert journal.get(b"x") is None
    journal.close()
    with Journal(path) as again:
        assert len(again) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "file" / "a.journal")
