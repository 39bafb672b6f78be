"""Items made up from a seed: nothing to download, nothing that a model can have learned by heart.

Each is a context and its one right continuation. Exercised by
`pytest tests/unit/evals/test_tasks.py`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from hasten.evals.rows import ContinuationRow

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["needle", "copying", "arithmetic"]

_NOUNS = (
    "river", "garden", "ladder", "window", "basket", "mirror", "kettle", "bridge", "candle",
    "market", "forest", "button", "saddle", "pencil", "harbour", "blanket", "trumpet", "lantern",
    "meadow", "barrel",
)  # fmt: skip
_ADJECTIVES = (
    "red", "quiet", "broken", "early", "narrow", "golden", "heavy", "little", "honest", "wooden",
)  # fmt: skip
_VERBS = ("stands", "waits", "rusts", "shines", "lies", "sleeps", "leans", "glitters")
_PLACES = (
    "near the mill", "behind the school", "under the stairs", "by the sea", "in the old barn",
    "beside the road", "on the hill", "at the end of the lane",
)  # fmt: skip


def synthetic_rows(kind: Kind, num_items: int, size: int, seed: int) -> list[ContinuationRow]:
    """`num_items` items. `size`: sentences of hay, words to copy, or digits of the numbers."""
    make: Callable[[random.Random, int, int, int], ContinuationRow] = _MAKERS[kind]
    rng = random.Random(f"{kind}/{size}/{seed}")  # noqa: S311 - reproducible items, not secrets
    return [make(rng, index, num_items, size) for index in range(num_items)]


def _needle(rng: random.Random, index: int, num_items: int, size: int) -> ContinuationRow:
    """A number hidden in hay; the depth goes evenly from the beginning to the end."""
    hay = [_sentence(rng) for _ in range(size)]
    who, number = rng.choice(_NOUNS), rng.randrange(100, 1000)
    depth = round(index / max(num_items - 1, 1) * size)
    hay.insert(depth, f"The secret number of the {who} is {number}.")
    context = f"{' '.join(hay)} As was said above, the secret number of the {who} is"
    return ContinuationRow(context, f" {number}")


def _copying(rng: random.Random, _index: int, _num_items: int, size: int) -> ContinuationRow:
    words = [rng.choice(_NOUNS) for _ in range(size)]
    line = " ".join(words)
    begin, rest = " ".join(words[:2]), " ".join(words[2:])
    return ContinuationRow(f"{line}.\n{line}.\n{begin}", f" {rest}")


def _arithmetic(rng: random.Random, _index: int, _num_items: int, size: int) -> ContinuationRow:
    examples = [_sum(rng, size) for _ in range(4)]
    question, answer = _sum(rng, size)
    shown = "".join(f"{asked} {result}\n" for asked, result in examples)
    return ContinuationRow(f"{shown}{question}", f" {answer}")


def _sum(rng: random.Random, num_digits: int) -> tuple[str, int]:
    low, high = 10 ** (num_digits - 1), 10**num_digits
    one, other = rng.randrange(low, high), rng.randrange(low, high)
    return f"{one} + {other} =", one + other


def _sentence(rng: random.Random) -> str:
    subject = f"{rng.choice(_ADJECTIVES)} {rng.choice(_NOUNS)}"
    return f"The {subject} {rng.choice(_VERBS)} {rng.choice(_PLACES)}."


_MAKERS = {"needle": _needle, "copying": _copying, "arithmetic": _arithmetic}
