"""The whole of `make gpu-check`, small, on the interpreter, with nothing installed but what it may
need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.parts import Part, correctness, for_tiny, speed
from tests.gpu.pool import run_together
from tests.gpu.report import write_report
from tests.gpu.setting import Row, Setting

ROOT = Path(__file__).parents[2]

RUN_WITHOUT_THE_OTHERS = """
import importlib.metadata, re, runpy, sys

def plain(name):
    return name.lower().replace("-", "_")

needed, waiting = set(), ["torch", "triton", "numpy", "safetensors", "tokenizers"]
while waiting:
    name = plain(waiting.pop())
    if name not in needed:
        needed.add(name)
        try:
            requirements = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        always = [text for text in requirements if "extra ==" not in text]
        waiting += [re.match(r"[\\w.-]+", text)[0] for text in always]
needed.add("hasten")
owners = importlib.metadata.packages_distributions()

class Absent:
    def find_spec(self, name, path=None, target=None):
        owning = {plain(owner) for owner in owners.get(name.split(".")[0], ())}
        if owning and not owning & needed:
            raise ModuleNotFoundError(f"No module named {name!r}, as far as this run is concerned")

sys.meta_path.insert(0, Absent())
sys.argv = ["tests.gpu", *sys.argv[1:]]
runpy.run_module("tests.gpu", run_name="__main__")
"""


@pytest.mark.timeout(1500)  # half a minute of work, on however busy a machine
def test_everything_runs_and_holds(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = ["--device=cpu", "--tiny", f"--out={tmp_path}", "--seconds=1400"]
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_THE_OTHERS, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    wanted = for_tiny([*correctness(), *speed()])
    assert {(part["group"], part["name"]) for part in found["parts"]} == {
        (part.group, part.name) for part in wanted
    }
    assert all(part["rows"] for part in found["parts"])
    assert found["facts"]["stand-ins for"] == "msgspec"
    text = (tmp_path / "gpu-check.md").read_text()
    assert "## tokens per second" in text
    assert "of the roofline" in text


def fails(_setting: Setting) -> list[Row]:
    raise RuntimeError("no such instruction")


def hangs(_setting: Setting) -> list[Row]:
    time.sleep(3600)
    return []


def finds(_setting: Setting) -> list[Row]:
    return [{"ok": True, "value": 1.5}, {"ok": False, "value": None}]


def part_of(run: Callable[[Setting], list[Row]]) -> Part:
    return Part("group", run.__name__, lambda setting: iter(run(setting)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking beside threads
def test_a_part_that_fails_or_hangs_ends_alone(tmp_path: Path) -> None:
    setting = Setting("cpu", is_tiny=True)
    others = [part_of(fails), part_of(finds)]
    findings = run_together(others, setting, tmp_path, 2, time.monotonic() + 250)
    findings += run_together([part_of(hangs)], setting, tmp_path, 1, time.monotonic() + 1)
    assert {finding.name: finding.ending for finding in findings} == {
        "fails": "RuntimeError: no such instruction",
        "hangs": "ran out of its time",
        "finds": "finished",
    }
    assert not any(finding.ok for finding in findings)
    late = run_together(others[1:], setting, tmp_path, 1, time.monotonic() - 1)
    assert [finding.ending for finding in late] == ["there was no time for it"]
    write_report(findings, {"device": "none"}, tmp_path)
    report = (tmp_path / "gpu-check.md").read_text()
    assert "**1 of 2 failed**" in report
    assert "**ran out of its time**" in report
