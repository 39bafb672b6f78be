"""A small suite, and runs of it over fake targets."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from hasten.evals.memory import RememberingTarget
from hasten.evals.pair import Pair
from hasten.evals.rows import DataFolder
from hasten.evals.run import Run
from hasten.evals.store import Store
from hasten.evals.suite import Suite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hasten.evals.record import Measured, Record

    from tests.unit.evals.fakes import FakeTarget

SUITE = msgspec.convert(
    {
        "name": "small",
        "description": "for tests",
        "blocks": [
            {
                "kind": "text",
                "name": "text",
                "num_windows": 10,
                "window_len": 129,
                "limits": {"kl_mean": 0.01, "kl_late": 0.02, "top1_change": 0.1},
            },
            {
                "kind": "chat",
                "name": "chat",
                "num_prompts": 10,
                "max_tokens": 24,
                "limits": {"kl_mean": 0.02, "decode_errors": 0.02},
            },
            {
                "kind": "invariance",
                "name": "one_text",
                "num_prompts": 3,
                "max_tokens": 5,
                "limits": {"text_changes": 0},
            },
            {
                "kind": "choice",
                "name": "facts",
                "num_items": 60,
                "limits": {"accuracy_loss": 0.1},
            },
            {"kind": "synthetic", "name": "sums", "task": "arithmetic", "size": 2, "num_items": 12},
            {
                "kind": "serving",
                "name": "speed",
                "concurrency": [1, 2],
                "num_rounds": 8,
                "max_tokens": 4,
            },
        ],
    },
    Suite,
)


@dataclass
class Watched:
    """A watcher that keeps what it was told."""

    measured: list[Measured] = field(default_factory=list)

    def advance(self, done: int, total: int) -> None: ...

    def begin(self, block: str) -> None: ...

    def end(self, measured: Measured) -> None:
        self.measured.append(measured)

    @property
    def recalled(self) -> list[str]:
        return [one.name for one in self.measured if one.recalled]


@contextmanager
def opened(root: Path, key: bytes | None = None) -> Iterator[Store]:
    store = Store(root, key)
    try:
        yield store
    finally:
        store.close()


def run(
    store: Store,
    baseline: FakeTarget,
    candidate: FakeTarget,
    suite: Suite = SUITE,
    watcher: Watched | None = None,
) -> Record:
    """Run and save."""
    sides = [
        RememberingTarget(t.configuration, store.answers(t.configuration.hash), t)
        for t in (baseline, candidate)
    ]
    pair = Pair(sides[0], sides[1], DataFolder(), author=sides[0])
    finished = store.blocks(baseline.configuration.hash, candidate.configuration.hash)
    return store.save(Run(suite, pair, finished, watcher or Watched()).execute())[0]
