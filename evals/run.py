"""A run: observe each block of a suite on both sides, judge, make a record.

What is finished is kept at once, so a run that dies loses at most the block it was in, and of that
only what is not remembered as answers. Exercised by `pytest tests/unit/evals/test_run.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import msgspec
from hasten.evals.blocks import BlockResult
from hasten.evals.blocks.harness import HarnessBlock
from hasten.evals.blocks.serving import ServingBlock
from hasten.evals.canonical import content_hash
from hasten.evals.gate import Measure, overall
from hasten.evals.record import Measured, Record, now
from hasten.evals.target import CannotMeasureError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.evals.blocks import Block
    from hasten.evals.gate import Judgement
    from hasten.evals.journal import Journal
    from hasten.evals.pair import Pair
    from hasten.evals.suite import Suite


class Watcher(Protocol):
    """Told how a run goes."""

    def advance(self, done: int, total: int) -> None: ...

    def begin(self, block: str) -> None: ...

    def end(self, measured: Measured) -> None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """One suite on one pair. `recall_timings`: this goes on with an interrupted run."""

    suite: Suite
    pair: Pair
    finished: Journal
    watcher: Watcher
    recall_timings: bool = False

    def execute(self) -> Record:
        """Observe and judge. Raises TargetError, DataError, JournalError: then nothing is judged,
        and what was finished is kept. Data that is missing is found before anything is measured.
        """
        for block in self.suite.blocks:
            self._data_hashes(block)
        blocks = [self._measure(block) for block in self.suite.blocks]
        judgements = judge(self.suite, blocks)
        return Record(
            created=now(),
            suite=self.suite,
            baseline=self.pair.baseline.configuration,
            candidate=self.pair.candidate.configuration,
            data=dict(sorted(self.pair.data.hashes.items())),
            blocks=blocks,
            judgements=judgements,
            verdict=overall(judgements),
        )

    def _measure(self, block: Block) -> Measured:
        self.watcher.begin(block.name)
        measured = self._recall(block) or self._observe(block)
        self.watcher.end(measured)
        return measured

    def _observe(self, block: Block) -> Measured:
        begin = perf_counter()
        try:
            result = block.observe(self.pair)
        except CannotMeasureError as error:
            return Measured(name=block.name, error=str(error))
        measured = Measured(name=block.name, result=result, seconds=perf_counter() - begin)
        self.finished.put(self._key(block), msgspec.msgpack.encode(measured))
        return measured

    def _recall(self, block: Block) -> Measured | None:
        """The block as an earlier run finished it, on the same data.

        The harness reads its data itself, so that only asking again shows whether it is the same;
        the answers are remembered all the same.
        """
        if isinstance(block, HarnessBlock):
            return None
        if isinstance(block, ServingBlock) and not self.recall_timings:
            return None
        stored = self.finished.get(self._key(block))
        if stored is None:
            return None
        measured = msgspec.msgpack.decode(stored, type=Measured)
        return msgspec.structs.replace(measured, recalled=True)

    def _key(self, block: Block) -> bytes:
        """Names the block without its limits, which change what is judged, not what is seen."""
        bare = msgspec.structs.replace(block, limits={})
        return content_hash([bare, self._data_hashes(block)]).encode()

    def _data_hashes(self, block: Block) -> list[str]:
        names = [getattr(block, "source", None), getattr(block, "examples", None)]
        return [self.pair.data.fingerprint(name) for name in names if name is not None]


def judge(suite: Suite, blocks: Sequence[Measured]) -> list[Judgement]:
    """The suite's gate over what its blocks saw."""
    measures: list[Measure] = []
    for block, measured in zip(suite.blocks, blocks, strict=True):
        if measured.result is None:
            measures.extend(_missing(block, measured.error))
        else:
            make: Callable[[BlockResult], list[Measure]] = block.measures  # type: ignore[assignment]  # a block's own result, by construction
            measures.extend(make(measured.result))
    return suite.gate.judge(measures)


def _missing(block: Block, error: str) -> list[Measure]:
    """Every limit of a block that could not be observed, so that none is overlooked."""
    return [
        Measure(f"{block.name}.{name}", "", None, limit, error)
        for name, limit in (block.limits or {"observed": 0.0}).items()
    ]
