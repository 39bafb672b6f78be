"""From matches in earlier text to a draft: the matches vote, token by token.

The longest matches are heard, for a longer context says more about what follows (as in prediction
by partial matching; Cleary and Witten, 1984). At each position the token that most of them go on
with is drafted, and those that go on otherwise fall silent. Its confidence is the share of the
votes times what a context of that length has been worth: `WORTH`, measured on chat prompts of the
embedded model (docs/speculation.md). What it is worth elsewhere is learnt while serving
(`spec.acceptance`).

Pure. Exercised by `pytest tests/unit/spec/test_drafting.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hasten.spec.proposer import NO_DRAFT, Draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.spec.text_index import Match, TextIndex

WORTH = (0.0, 0.2, 0.5, 0.65, 0.68, 0.74, 0.78, 0.81, 0.84, 0.86, 0.88, 0.89, 0.9, 0.91, 0.92, 0.93)
"""How often the token after a context of so many equal tokens is the same too."""
WORTH_OF_LONGER = 0.95


def draft_after(
    index: TextIndex, text_id: int, depth: int, older: TextIndex | None = None
) -> Draft:
    """At most `depth` guesses of how a text of `index` goes on, by this index and an older one."""
    text = index.tokens(text_id)
    matches = index.matches(text)
    if older is not None:
        matches += older.matches(text)
    return draft_from(matches, text, depth)


def draft_from(matches: Sequence[Match], text: Sequence[int], depth: int) -> Draft:
    """At most `depth` tokens that the longest of `matches` have after them.

    `text` is the text to be continued. A match in itself may overlap its end, and then repeats the
    period between the two for as long as is asked.
    """
    if not matches or depth <= 0:
        return NO_DRAFT
    length = max(match.length for match in matches)
    runs = [_run(match, text, depth) for match in matches if match.length == length]
    if len(runs) == 1:
        return Draft(runs[0], [_worth(length + i) for i in range(len(runs[0]))])
    return _vote(runs, length)


def _run(match: Match, text: Sequence[int], depth: int) -> Sequence[int]:
    """The tokens after a match; never empty, since a place counts once a token stands there."""
    tokens, place, _ = match
    run = tokens[place : place + depth]
    if tokens is text and len(run) < depth:
        period = len(tokens) - place
        return [run[i % period] for i in range(depth)]
    return run


def _vote(runs: list[Sequence[int]], length: int) -> Draft:
    """The latest match wins a tie, being first."""
    token_ids: list[int] = []
    confidences: list[float] = []
    while True:
        idx = len(token_ids)
        votes = Counter(run[idx] for run in runs if idx < len(run))
        if not votes:
            return Draft(token_ids, confidences)
        winner, count = votes.most_common(1)[0]
        token_ids.append(winner)
        confidences.append(_worth(length + idx) * count / votes.total())
        runs = [run for run in runs if idx < len(run) and run[idx] == winner]


def _worth(length: int) -> float:
    return WORTH[length] if length < len(WORTH) else WORTH_OF_LONGER
