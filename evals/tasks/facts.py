"""Multiple-choice items from the shipped relations: plain questions that small models know.

Exercised by `pytest tests/unit/evals/test_tasks.py`.
"""

from __future__ import annotations

import random
import tomllib
from functools import cache

import msgspec
from hasten.evals.rows import PACKAGED, ChoiceRow

NUM_CHOICES = 4


class _Relation(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    pairs: list[tuple[str, str]]


@cache
def facts_rows() -> tuple[ChoiceRow, ...]:
    """All items, in an order that mixes the relations. The same on every machine."""
    tables = tomllib.loads((PACKAGED / "facts.toml").read_text(encoding="utf-8"))
    rng = random.Random(1)  # noqa: S311 - a fixed shuffle, not a secret
    rows = [
        _row(relation, index, rng)
        for relation in msgspec.convert(tables, dict[str, _Relation]).values()
        for index in range(len(relation.pairs))
    ]
    rng.shuffle(rows)
    return tuple(rows)


def _row(relation: _Relation, index: int, rng: random.Random) -> ChoiceRow:
    subject, answer = relation.pairs[index]
    others = sorted({other for _, other in relation.pairs} - {answer})
    choices = rng.sample(others, NUM_CHOICES - 1)
    gold = rng.randrange(NUM_CHOICES)
    choices.insert(gold, answer)
    return ChoiceRow(relation.query.replace("{a}", subject), choices, gold)
