"""Parts in processes of their own: what fails, hangs or takes too long ends alone.

Processes are forked from one that has imported everything and never touched the device (a forked
process cannot use a CUDA context of its parent).
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.parts import Part, run_part
from tests.gpu.report import Finding
from tests.gpu.setting import Setting

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

POLL_S = 0.1
CONTEXT = multiprocessing.get_context("fork")


class _Running:
    """A part in its process."""

    def __init__(self, part: Part, setting: Setting, folder: Path) -> None:
        self._part = part
        self._path = folder / f"{part.group}-{part.name}.jsonl".replace(" ", "-")
        self._begin = time.monotonic()
        self._process: BaseProcess = CONTEXT.Process(
            target=run_part, args=(part, setting, self._path)
        )
        self._process.start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def finish(self) -> Finding:
        """End it where it has not ended, and read what it found."""
        ran_out = self._process.is_alive()
        if ran_out:
            self._process.kill()
        self._process.join()
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        ending = f"died with status {self._process.exitcode}"
        if rows and "finished" in rows[-1]:
            ending, rows = "finished", rows[:-1]
        elif rows and "failed" in rows[-1]:
            ending, rows = rows[-1]["failed"], rows[:-1]
        elif ran_out:
            ending = "ran out of its time"
        seconds = time.monotonic() - self._begin
        return Finding(self._part.group, self._part.name, round(seconds, 1), ending, rows)


def run_together(
    parts: Sequence[Part], setting: Setting, folder: Path, num_processes: int, deadline: float
) -> list[Finding]:
    """Up to `num_processes` at a time, until `deadline` (`time.monotonic`)."""
    waiting, running, findings = list(parts), list[_Running](), list[Finding]()
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and len(running) < num_processes:
            running.append(_Running(waiting.pop(0), setting, folder))
        time.sleep(POLL_S)
        ended = [part for part in running if not part.is_alive]
        running = [part for part in running if part not in ended]
        findings += [part.finish() for part in ended]
    findings += [part.finish() for part in running]
    return findings + [_not_begun(part) for part in waiting]


def run_alone(
    parts: Sequence[Part], setting: Setting, folder: Path, deadline: float
) -> list[Finding]:
    """One after the other; each may take twice its share of the time that is left."""
    findings = []
    for i, part in enumerate(parts):
        left = deadline - time.monotonic()
        limit = time.monotonic() + min(left, 2 * left / (len(parts) - i))
        findings += run_together([part], setting, folder, 1, limit)
    return findings


def _not_begun(part: Part) -> Finding:
    return Finding(part.group, part.name, 0.0, "there was no time for it", [])
