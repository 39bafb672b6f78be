"""Where the last tokens of a text stood before: an index of n-grams over texts that grow.

Terms: a *place* is the index of a token in an indexed text; the n-gram that ends right before it is
its *context*. A *match* is a place whose context equals the end of the text at hand, and the tokens
from it on are a guess of what comes next.

    indexed text    ... q u o t e d   w o r d s ...
                          [ context ]^ place
    text at hand    ... a l l   q u o t e d         next: w?

Not here: whose texts may be searched (`spec.ngram`, `spec.suffix`), what a match is worth
(`spec.drafting`). Pure, linear time. Exercised by `pytest tests/unit/spec/test_text_index.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

CHAINED_LEN = 3
"""Places are linked that have so many tokens of context in common."""
CONTEXT_LENS = (32, 16, 8, 6, 5, 4)
"""Longer contexts that a match is tried for."""
MAX_MATCHES = 8
"""Matches looked at, the latest first."""
LONG_ENOUGH = 16
"""After a match of so many tokens no older one is looked for."""

_TOKEN_BITS = 21  # token ids are below 2^21 - 1, so three of them are one key
_PLACE_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_NOWHERE = -1


class Match(NamedTuple):
    """`tokens[place:]` followed a context of at least `length` tokens equal to the present one."""

    tokens: Sequence[int]
    place: int
    length: int


class _Text:
    """One text: the list it grows in, from where it is indexed, and its links to earlier places."""

    __slots__ = ("links", "start", "tokens")

    def __init__(self, tokens: Sequence[int], start: int) -> None:
        self.tokens = tokens
        self.start = start
        self.links: list[int] = []  # links[i] is that of place start + CHAINED_LEN + i

    @property
    def next_place(self) -> int:
        return self.start + CHAINED_LEN + len(self.links)

    def link(self, place: int) -> int:
        """The place before `place` with its trigram, packed."""
        return self.links[place - self.start - CHAINED_LEN]


class TextIndex:
    """An index over texts that only ever grow; it keeps references, not copies.

    Places with equal trigrams are linked, the latest first; of shorter contexts only the latest
    is kept.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._texts: list[_Text] = []
        self._latest: dict[int, int] = {}

    def add(self, tokens: Sequence[int], start: int = 0) -> int:
        """Index `tokens[start:]`, also as they grow (see `extend`). Returns the text's id."""
        self._texts.append(_Text(tokens, start))
        text_id = len(self._texts) - 1
        self.extend(text_id)
        return text_id

    def tokens(self, text_id: int) -> Sequence[int]:
        """The whole text, as it is now."""
        return self._texts[text_id].tokens

    def extend(self, text_id: int) -> None:
        """Take in what a text has grown by since. A place counts once a token stands there."""
        text = self._texts[text_id]
        tokens, latest, links = text.tokens, self._latest, text.links
        begin, end = text.next_place, len(tokens)
        if begin >= end:
            return
        self.num_tokens += end - begin
        base = text_id << _PLACE_BITS
        a, b = tokens[begin - 3] + 1, tokens[begin - 2] + 1
        for place in range(begin, end):
            c = tokens[place - 1] + 1
            pair = b << _TOKEN_BITS | c
            key = a << 2 * _TOKEN_BITS | pair
            links.append(latest.get(key, _NOWHERE))
            latest[key] = latest[pair] = latest[c] = base | place
            a, b = b, c

    def matches(self, tokens: Sequence[int]) -> list[Match]:
        """Where the end of `tokens` stood before, the latest first; [] when nowhere.

        Without a match of three tokens, the latest of two, or else of one.
        """
        latest = self._latest
        if len(tokens) < CHAINED_LEN:
            return []
        pair = (tokens[-2] + 1) << _TOKEN_BITS | (tokens[-1] + 1)
        packed = latest.get((tokens[-3] + 1) << 2 * _TOKEN_BITS | pair)
        if packed is not None:
            return self._chain(packed, tokens)
        for length, key in ((2, pair), (1, tokens[-1] + 1)):
            packed = latest.get(key)
            if packed is not None:
                text = self._texts[packed >> _PLACE_BITS]
                return [Match(text.tokens, packed & _PLACE_MASK, length)]
        return []

    def _chain(self, packed: int, tokens: Sequence[int]) -> list[Match]:
        found: list[Match] = []
        tails = [(n, tokens[-n:]) for n in CONTEXT_LENS if n <= len(tokens)]
        while packed != _NOWHERE and len(found) < MAX_MATCHES:
            text, place = self._texts[packed >> _PLACE_BITS], packed & _PLACE_MASK
            length = _match_len(text.tokens, place, tails)
            found.append(Match(text.tokens, place, length))
            if length >= LONG_ENOUGH:
                break
            packed = text.link(place)
        return found


def _match_len(
    tokens: Sequence[int], place: int, tails: Sequence[tuple[int, Sequence[int]]]
) -> int:
    for num_tokens, tail in tails:
        if num_tokens <= place and tokens[place - num_tokens : place] == tail:
            return num_tokens
    return CHAINED_LEN
