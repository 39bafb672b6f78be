"""The cache folder: where it is, and that its files are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.core.loading.cache import cache_folder, write_atomically


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HASTEN_CACHE": "/own", "XDG_CACHE_HOME": "/shared"}, "/own"),
        ({"XDG_CACHE_HOME": "/shared"}, "/shared/hasten"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/x"}, "/home/x/.cache/hasten"),
        ({"HASTEN_CACHE": "", "HOME": "/home/x"}, "/home/x/.cache/hasten"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("HASTEN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_cache_files_are_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "a" / "b.json"
    assert write_atomically(target, b"one")
    assert target.read_bytes() == b"one"

    def fail(_path: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    assert not write_atomically(target, b"two")
    assert target.read_bytes() == b"one"
    assert list(target.parent.iterdir()) == [target]
    assert "No space left on device" in caplog.text
