"""Multiple choice by log-likelihood: the choice that the model finds most likely is its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hasten.evals.blocks.accuracy import ItemResult, accuracy_measures
from hasten.evals.blocks.limits import check_limits
from hasten.evals.rows import FACTS, ChoiceRow
from hasten.evals.target import Scored
from hasten.evals.tasks.facts import facts_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.gate import Measure
    from hasten.evals.pair import Pair
    from hasten.evals.target import Target, TokenScores


class ChoiceResult(msgspec.Struct, frozen=True, tag="choice"):
    items: list[ItemResult]


class ChoiceBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="choice",
    forbid_unknown_fields=True,
):
    """The first `num_items` rows {query, choices, gold} of a .jsonl file, or of the shipped facts.

    `suffix` is put between the query and " " + choice. `per_byte` divides each choice's
    log-likelihood by its length in UTF-8 bytes, so that long choices are not at a disadvantage.
    """

    name: str
    source: str = FACTS
    num_items: int
    suffix: str = ""
    per_byte: bool = False
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("accuracy_loss", "likelihood_loss"))

    def observe(self, pair: Pair) -> ChoiceResult:
        rows = self._rows(pair)
        picks = [self._answers(pair, target, rows) for target in pair.both]
        items = [
            ItemResult(
                name=f"{self.name}/{number}",
                baseline=base == row.gold,
                candidate=cand == row.gold,
                loss=base_gold - cand_gold,
                detail=f"{row.query} -> {row.choices[base]} | {row.choices[cand]}",
            )
            for number, (row, (base, base_gold), (cand, cand_gold)) in enumerate(
                zip(rows, *picks, strict=True)
            )
        ]
        return ChoiceResult(items)

    def measures(self, result: ChoiceResult) -> list[Measure]:
        return accuracy_measures(self.name, result.items, self.limits)

    def _rows(self, pair: Pair) -> Sequence[ChoiceRow]:
        if self.source == FACTS:
            return facts_rows()[: self.num_items]
        return pair.data.rows(self.source, ChoiceRow, self.num_items)

    def _answers(
        self, pair: Pair, target: Target, rows: Sequence[ChoiceRow]
    ) -> list[tuple[int, float]]:
        """Per row the choice that `target` prefers, and the log-likelihood of the right one."""
        answers: list[tuple[int, float]] = []
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            pair.progress.advance(begin, len(rows))
            some = rows[begin : begin + _ROWS_AT_ONCE]
            asked = [self._scored(target, row, choice) for row in some for choice in row.choices]
            scores = iter(target.score(asked))
            answers.extend(self._pick(row, [next(scores) for _ in row.choices]) for row in some)
        return answers

    def _scored(self, target: Target, row: ChoiceRow, choice: str) -> Scored:
        return split_text(target, row.query + self.suffix, " " + choice)

    def _pick(self, row: ChoiceRow, scores: Sequence[TokenScores]) -> tuple[int, float]:
        totals = [score.total for score in scores]
        lengths = [len(choice.encode()) if self.per_byte else 1 for choice in row.choices]
        ranked = [total / length for total, length in zip(totals, lengths, strict=True)]
        return int(np.argmax(ranked)), totals[row.gold]


_ROWS_AT_ONCE = 16


def split_text(target: Target, context: str, continuation: str) -> Scored:
    """Context and continuation as one text, scored from where the continuation's tokens begin.

    Spaces at the end of the context move to the continuation, since tokens begin with them. (As
    lm-evaluation-harness does it, so that accuracies can be compared.)
    """
    bare = context.rstrip()
    whole = target.encode(bare + context[len(bare) :] + continuation)
    start = len(target.encode(bare))
    return Scored(whole, max(min(start, len(whole) - 1), 1))
