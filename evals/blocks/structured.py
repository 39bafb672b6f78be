"""JSON of a given schema: does the answer fit it, and does it say the right thing?

Left to itself, a model shows how well it follows a schema that it was told of; with `constrained`,
a grammar sees to the form and what is left is the content. Whether or not a small model manages
either, the likelihood of the right answer shows what became of the ability.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
from hasten.evals.blocks.limits import check_limits
from hasten.evals.gate import Measure
from hasten.evals.harm import BootstrapHarm, PairedLoss
from hasten.evals.statistics import mcnemar
from hasten.evals.target import Prompt, Scored
from hasten.evals.tasks.structured import Kind, fits, parse, structured_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.pair import Pair
    from hasten.evals.target import Target
    from hasten.evals.tasks.structured import StructuredRow

_ITEMS_AT_ONCE = 32


class Graded(msgspec.Struct, frozen=True):
    """An answer: whether it fits its schema and whether it is right; the right one's likelihood."""

    text: str
    fits: bool
    right: bool
    logprob: float


class StructuredItem(msgspec.Struct, frozen=True):
    """One item on both sides."""

    name: str
    baseline: Graded
    candidate: Graded


class StructuredResult(msgspec.Struct, frozen=True, tag="structured"):
    items: list[StructuredItem]


class StructuredBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="structured",
    forbid_unknown_fields=True,
):
    """`num_items` items made from a seed, each after `num_examples` solved ones.

    `task` is `schema` (facts to write down) or `tool` (a function to call, with its arguments).
    """

    name: str
    task: Kind
    num_items: int
    num_examples: int = 2
    max_tokens: int = 64
    constrained: bool = False
    seed: int = 1
    limits: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_limits(self.name, self.limits, ("schema_loss", "accuracy_loss", "likelihood_loss"))

    def observe(self, pair: Pair) -> StructuredResult:
        rows = structured_rows(self.task, self.num_items, self.num_examples, self.seed)
        base, cand = (self._answers(pair, target, rows) for target in pair.both)
        return StructuredResult(
            [
                StructuredItem(f"{self.name}/{number}", *sides)
                for number, sides in enumerate(zip(base, cand, strict=True))
            ]
        )

    def measures(self, result: StructuredResult) -> list[Measure]:
        items = result.items
        losses = [[item.baseline.logprob - item.candidate.logprob] for item in items]
        likelihood = BootstrapHarm.mean(losses, "items")
        name = "likelihood_loss"
        return [
            self._loss("schema_loss", "fit", [(i.baseline.fits, i.candidate.fits) for i in items]),
            self._loss(
                "accuracy_loss", "right", [(i.baseline.right, i.candidate.right) for i in items]
            ),
            Measure(f"{self.name}.{name}", "nats", likelihood, self.limits.get(name)),
        ]

    def _loss(self, name: str, word: str, pairs: Sequence[tuple[bool, bool]]) -> Measure:
        base, cand = zip(*pairs, strict=True)
        harm = PairedLoss.of(base, cand)
        note = (
            f"{sum(base)} and {sum(cand)} of {len(pairs)} {word}; {harm.lost} lost, {harm.won} "
            f"won, McNemar p = {mcnemar(harm.lost, harm.won):.3f}"
        )
        return Measure(f"{self.name}.{name}", "share", harm, self.limits.get(name), note)

    def _answers(self, pair: Pair, target: Target, rows: Sequence[StructuredRow]) -> list[Graded]:
        graded: list[Graded] = []
        for begin in range(0, len(rows), _ITEMS_AT_ONCE):
            pair.progress.advance(begin, len(rows))
            some = rows[begin : begin + _ITEMS_AT_ONCE]
            prompts = [self._prompt(target, row) for row in some]
            right = [
                Scored((*prompt.token_ids, *target.encode(row.answer)), len(prompt.token_ids))
                for prompt, row in zip(prompts, some, strict=True)
            ]
            answers = target.continue_greedily(prompts)
            scores = target.score(right)
            for row, answer, score in zip(some, answers, scores, strict=True):
                graded.append(_grade(row, answer.text, score.total))
        return graded

    def _prompt(self, target: Target, row: StructuredRow) -> Prompt:
        schema = json.dumps(row.schema) if self.constrained else ""
        return Prompt(target.render(row.messages), self.max_tokens, schema=schema)


def _grade(row: StructuredRow, text: str, logprob: float) -> Graded:
    value = parse(text)
    return Graded(text, fits(value, row.schema), value == json.loads(row.answer), logprob)
