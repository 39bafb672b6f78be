"""A virtual environment for a tool that does not belong in the serving environment.

By default in the cache folder, made on first use; or a directory that is given, used as it is where
it holds an environment, made there where it holds nothing, and refused where it holds other things.
A folder with LOG is one that we make; MARK says that it is finished. Exercised by
`pytest tests/cpu/quant/test_quantize_tools.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hasten.core.loading.cache import cache_folder
from hasten.core.options import ConfigurationError
from hasten.core.quantize.tools.catalogue import Tool

MARK = "hasten-installed.json"
LOG = "hasten-install.log"
LAST_LINES = 6


@dataclass(frozen=True, slots=True)
class ToolEnvironment:
    """One environment; `is_given` when the user named the folder."""

    tool: Tool
    folder: Path
    is_given: bool

    @classmethod
    def locate(cls, tool: Tool, given: Path | None) -> ToolEnvironment:
        """Where the tool lives or will live; other versions live elsewhere."""
        if given is not None:
            return cls(tool, given, is_given=True)
        digest = hashlib.sha256(json.dumps(tool.installs).encode()).hexdigest()[:12]
        return cls(tool, cache_folder() / "tools" / f"{tool.package}-{digest}", is_given=False)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def ensure(self, report: Callable[[str], None]) -> None:
        """Make what is missing, and go on with what was interrupted.

        Raises ConfigurationError when that fails, with what pip said.
        """
        is_ours = not self.is_given or (self.folder / LOG).exists()
        if self.python.exists():
            if (self.folder / MARK).exists():
                return
            if not is_ours:
                self._require_tool()
                return
        elif is_ours:
            self._remove_remains()
        else:
            self._require_nothing_else()
        report(f"making an environment for {self.tool.package} in {self.folder}, once")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._call((sys.executable, "-m", "venv", str(self.folder)))
        for arguments in self.tool.installs:
            report(f"pip install {' '.join(arguments)}")
            self._call((str(self.python), "-m", "pip", "install", *arguments))
        (self.folder / MARK).write_text(json.dumps(self.tool.installs), encoding="utf-8")

    def _remove_remains(self) -> None:
        """What we made for a Python that is gone."""
        (self.folder / MARK).unlink(missing_ok=True)
        for name in ("bin", "lib"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def _require_nothing_else(self) -> None:
        """Somebody else's folder without a Python is made an environment only where it is empty."""
        if (self.folder / "pyvenv.cfg").exists():
            raise ConfigurationError(
                f"--environment {self.folder}: its bin/python is missing or leads to a Python that "
                "is gone; make the environment again"
            )
        if self.folder.exists() and any(self.folder.iterdir()):
            raise ConfigurationError(
                f"--environment {self.folder}: holds other things than an environment; "
                "name a folder that is empty or does not exist yet"
            )

    def _require_tool(self) -> None:
        """An environment that somebody else made must hold the tool."""
        question = f"import importlib.metadata; importlib.metadata.version({self.tool.package!r})"
        found = subprocess.run(  # noqa: S603  the interpreter that the user named
            (self.python, "-c", question),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=clean_variables(),
            check=False,
        )
        if found.returncode != 0:
            raise ConfigurationError(
                f"--environment {self.folder}: holds no {self.tool.package}; install it there, "
                "or name a folder that does not exist yet"
            )

    def _call(self, command: tuple[str, ...]) -> None:
        """Run a command, its output into a log. Raises ConfigurationError."""
        log = self.folder / LOG
        with log.open("w", encoding="utf-8") as out:
            done = subprocess.run(  # noqa: S603  venv and pip
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=clean_variables(),
                check=False,
            )
        if done.returncode != 0:
            raise ConfigurationError(
                f"{self.tool.package} could not be installed in {self.folder}:\n"
                f"{last_lines(log)}\n"
                f"It comes from PyPI. Without a network, name an environment that has it "
                "(--environment DIR), or use --backend native."
            )


def clean_variables() -> dict[str, str]:
    """Our process's, without what would bring our packages into the tool's environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def last_lines(log: Path) -> str:
    """The end of a log, indented."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return "\n".join(f"    {line}" for line in lines[-LAST_LINES:])
