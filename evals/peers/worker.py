"""A worker program as a child: calls in, seconds out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.evals.load.errors import LoadError

FOLDER = Path(__file__).parent / "workers"


@dataclass(slots=True)
class Worker:
    """One engine in a process of its own. Seeds count up: no two calls share a prompt."""

    name: str
    process: subprocess.Popen[str]
    _seed: int = 0

    def seconds(self, streams: int, prompt_len: int, output_len: int) -> float:
        """Raises LoadError when the worker ends."""
        self._seed += 1
        call = {"streams": streams, "prompt_len": prompt_len, "output_len": output_len}
        return float(self._ask({**call, "seed": self._seed})["seconds"])

    def decode_tokens_per_s(
        self, streams: int, prompt_len: int = 128, output_len: int = 64
    ) -> float:
        """Tokens after the first, over the time that they add to a run of one token each."""
        whole_s = self.seconds(streams, prompt_len, output_len)
        one_s = self.seconds(streams, prompt_len, 1)
        return streams * (output_len - 1) / (whole_s - one_s)

    def prompt_tokens_per_s(self, prompt_len: int) -> float:
        return prompt_len / self.seconds(1, prompt_len, 1)

    def _ask(self, call: dict[str, int]) -> dict[str, Any]:
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a worker is spoken to through pipes")
        try:
            self.process.stdin.write(json.dumps(call) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise LoadError(f"{self.name} ended with code {self.process.wait()}; see its log")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running_worker(
    name: str, python: Path, script: str, arguments: Sequence[str], log: Path
) -> Iterator[Worker]:
    """Start `workers/SCRIPT` and wait until its engine is loaded. Raises LoadError."""
    with (
        log.open("w") as errors,
        subprocess.Popen(  # noqa: S603  one of our own programs
            (str(python), str(FOLDER / script), *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise LoadError(f"{name} did not start; see {log}")
            yield Worker(name, process)
        finally:
            process.terminate()
