"""Comparing two stored runs: the candidate of the second with the candidate of the first.

Distributions come from what the runs remembered, so KL is a lower bound. What only a live model
can show (timings, repeats) is taken from the records themselves. Exercised by
`pytest tests/unit/evals/test_compare.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.evals.blocks.invariance import InvarianceResult
from hasten.evals.blocks.serving import ServingResult
from hasten.evals.gate import overall
from hasten.evals.memory import RememberingTarget
from hasten.evals.pair import Pair
from hasten.evals.record import Measured, Record, now
from hasten.evals.run import judge
from hasten.evals.target import CannotMeasureError

if TYPE_CHECKING:
    from hasten.evals.blocks import Block, BlockResult
    from hasten.evals.configuration import Configuration
    from hasten.evals.rows import DataFolder
    from hasten.evals.store import Store


@dataclass(frozen=True, slots=True)
class Comparison:
    """`first` and `second` are records of the same suite."""

    store: Store
    data: DataFolder
    first: Record
    second: Record
    allow_code: bool = False

    def execute(self) -> Record:
        """Raises CannotMeasureError when the suites differ."""
        suite = self.second.suite
        if suite.hash != self.first.suite.hash:
            raise CannotMeasureError(
                f"the runs are of different suites ({self.first.suite.name}, {suite.name}), "
                "or of different versions of one"
            )
        pair = Pair(
            baseline=self._stored(self.first.candidate),
            candidate=self._stored(self.second.candidate),
            data=self.data,
            author=self._stored(self.first.baseline),
            allow_code=self.allow_code,
        )
        blocks = [self._measure(block, pair) for block in suite.blocks]
        judgements = judge(suite, blocks)
        return Record(
            created=now(),
            suite=suite,
            baseline=self.first.candidate,
            candidate=self.second.candidate,
            data=dict(sorted(self.data.hashes.items())),
            blocks=blocks,
            judgements=judgements,
            verdict=overall(judgements),
        )

    def _stored(self, configuration: Configuration) -> RememberingTarget:
        return RememberingTarget(configuration, self.store.answers(configuration.hash), None)

    def _measure(self, block: Block, pair: Pair) -> Measured:
        result = self._from_records(block.name)
        try:
            return Measured(name=block.name, result=result or block.observe(pair), recalled=True)
        except CannotMeasureError as error:
            return Measured(name=block.name, error=str(error))

    def _from_records(self, name: str) -> BlockResult | None:
        first, second = (_result(record, name) for record in (self.first, self.second))
        if isinstance(second, InvarianceResult):
            return second
        if isinstance(first, ServingResult) and isinstance(second, ServingResult):
            return ServingResult(first.candidate, second.candidate)
        return None


def _result(record: Record, name: str) -> BlockResult | None:
    return next((block.result for block in record.blocks if block.name == name), None)
