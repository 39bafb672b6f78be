"""Texts with one right continuation: right if the model would have written exactly that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks.accuracy import ItemResult, accuracy_measures
from hasten.evals.blocks.choice import split_text
from hasten.evals.blocks.limits import check_limits
from hasten.evals.rows import ContinuationRow
from hasten.evals.tasks.synthetic import Kind, synthetic_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.gate import Measure
    from hasten.evals.pair import Pair
    from hasten.evals.target import Target, TokenScores

_ROWS_AT_ONCE = 32


class ContinuationResult(msgspec.Struct, frozen=True, tag="continuation"):
    items: list[ItemResult]


class _ContinuationItems(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of continuation blocks share: two targets, rows, a comparison."""

    name: str
    num_items: int
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("accuracy_loss", "likelihood_loss"))

    def _compare(self, pair: Pair, rows: Sequence[ContinuationRow]) -> ContinuationResult:
        base, cand = (_score(pair, target, rows) for target in pair.both)
        items = [
            ItemResult(
                name=f"{self.name}/{number}",
                baseline=b.all_greedy(),
                candidate=c.all_greedy(),
                loss=b.total - c.total,
                detail=f"...{row.context[-60:]}|{row.continuation}",
            )
            for number, (row, b, c) in enumerate(zip(rows, base, cand, strict=True))
        ]
        return ContinuationResult(items)

    def measures(self, result: ContinuationResult) -> list[Measure]:
        return accuracy_measures(self.name, result.items, self.limits)


class ContinuationBlock(
    _ContinuationItems,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="continuation",
    forbid_unknown_fields=True,
):
    """The first `num_items` rows {context, continuation} of a .jsonl file.

    A continuation that does not begin with a space gets one (LAMBADA's rows have none).
    """

    source: str

    def observe(self, pair: Pair) -> ContinuationResult:
        rows = [
            ContinuationRow(row.context, f" {row.continuation.lstrip(' ')}")
            for row in pair.data.rows(self.source, ContinuationRow, self.num_items)
        ]
        return self._compare(pair, rows)


class SyntheticBlock(
    _ContinuationItems,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="synthetic",
    forbid_unknown_fields=True,
):
    """Items made from a seed.

    `task` is `needle` (`size` sentences of hay), `copying` (`size` words) or `arithmetic` (sums of
    numbers of `size` digits).
    """

    task: Kind
    size: int
    seed: int = 1

    def observe(self, pair: Pair) -> ContinuationResult:
        rows = synthetic_rows(self.task, self.num_items, self.size, self.seed)
        return self._compare(pair, rows)


def _score(pair: Pair, target: Target, rows: Sequence[ContinuationRow]) -> list[TokenScores]:
    scores: list[TokenScores] = []
    for begin in range(0, len(rows), _ROWS_AT_ONCE):
        pair.progress.advance(begin, len(rows))
        some = rows[begin : begin + _ROWS_AT_ONCE]
        scores.extend(target.score([split_text(target, r.context, r.continuation) for r in some]))
    return scores
