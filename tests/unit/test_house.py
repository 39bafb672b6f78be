"""The house stands as drawn: which room imports which, and what importing costs.

`MAY_IMPORT` is the design: a room may import the rooms named beside it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {
    "kernels": set(),
    "quant": {"kernels"},
    "core": {"kernels", "quant"},
    "spec": {"core", "kernels"},
    "api": {"core", "kernels", "quant", "spec", "evals"},
    "evals": {"core", "kernels", "quant", "spec", "api"},
}
PURE = (
    "beams", "blocks", "counters", "deadlines", "fairness", "inspection", "isolation", "latency",
    "memory", "open_requests", "outcomes", "overload", "plan", "policy", "preemption", "request",
    "scheduler", "wait",
)  # fmt: skip
"""Modules of `core` that only keep books: no torch, no clock, no randomness, no I/O."""
IMPURE_IMPORTS = {"torch", "time", "random", "os", "pathlib", "socket", "datetime", "secrets"}

ROOMS = sorted(room for room in MAY_IMPORT if (ROOT / room).is_dir())


def imported_modules(path: Path) -> set[str]:
    """Absolute names of everything a source file imports, at any depth of nesting."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_the_design_allows(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    for path in (ROOT / room).rglob("*.py"):
        rooms = {
            name.split(".")[1] for name in imported_modules(path) if name.startswith("hasten.")
        }
        assert rooms <= allowed, f"{path.relative_to(ROOT)} imports {sorted(rooms - allowed)}"


@pytest.mark.parametrize("module", PURE)
def test_bookkeeping_is_pure(module: str) -> None:
    path = ROOT / "core" / f"{module}.py"
    tops = {name.split(".")[0] for name in imported_modules(path)}
    assert not tops & IMPURE_IMPORTS, f"{path.name} imports {sorted(tops & IMPURE_IMPORTS)}"


@pytest.mark.parametrize("module", ["core", "api", "kernels", "quant", "core.engine", "api.cli"])
def test_importing_is_light(module: str) -> None:
    heavy = "torch", "transformers", "triton"
    code = f"import sys, hasten.{module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout


def test_modules_name_tests_that_exist() -> None:
    missing = []
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for command in re.findall(r"Exercised by\s+`pytest ([^`]*)`", path.read_text()):
                named = [word for word in command.split() if word.startswith("tests/")]
                missing += [
                    f"{path.relative_to(ROOT)}: {n}" for n in named if not (ROOT / n).exists()
                ]
    assert not missing
