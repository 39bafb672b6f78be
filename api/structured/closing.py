"""An end within the token limit: how an output that follows a grammar is brought to its end.

Near `max_tokens` the mask of a row may allow one token only, the next of a short way to an end:

    remaining tokens   |<------------------------- remaining ------------------------->|
    short way to an end|<---- completion ---->|<- margin: what a token may make it longer ->|

Which tokens those are depends on the tokens before the row and on the limit alone, so the text is
the same however it was computed. A token that makes the way longer by more than the margin (it
opens an object with many required members) can still miss the limit.
Exercised by `pytest tests/unit/structured/test_closing.py`.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from hasten.api.structured.compiler import refuse_failed

if TYPE_CHECKING:
    from hasten.api.structured.compiler import Vocabulary
    from llguidance import LLMatcher

MAX_COMPLETION_STEPS = 512
"""Bytes or forced tokens: a way that has not ended by then counts as endless."""
MIN_MARGIN = 32  # tokens, where the limit leaves so many
MAX_EVERY = 8  # positions
SPARE_SHARE = 3
"""Of the tokens that a way leaves to spare, one in so many may go by before it is looked for anew.

Each takes one from the rest and may make the way longer by one and more."""
_ONLY_IN_TEXT = b"qK~&"
"""Where all of these may follow there is text; in numbers, addresses and between values not."""

_PRINTABLE = bytes(range(0x21, 0x7F))


def _order(first: bytes) -> bytes:
    return bytes(dict.fromkeys((*first, *_PRINTABLE, *range(256))))


_BEHIND_LETTERS = _order(b"\" @:/.'>)]};-\n")
_BEHIND_OTHERS = _order(b'"a0')
_BETWEEN = _order(b"}])>\"',:;.0123456789ntf-[({")
"""Which byte to try first. A quotation mark ends a text, and where it may not yet, letters and what
divides them take turns, as in addresses and dates. Between values a quotation mark begins a text
and brackets end things; commas go on with them, digits are values, brackets that open come last."""
_ENDS = b'"}],:'
NUM_REMEMBERED = 12
"""What was tried so lately and was no end is tried after all else: it could go on for ever."""


def completion(vocabulary: Vocabulary, matcher: LLMatcher) -> list[int] | None:
    """Tokens that lead from here to an end, none where it may end here; None when none is found.

    Greedy: not always the shortest, nor always found where there is one. Raises GrammarError where
    the grammar is too complex to look ahead.
    """
    ahead = matcher.deep_copy()
    path: list[int] = []
    lately: deque[int] = deque(maxlen=NUM_REMEMBERED)
    for _ in range(MAX_COMPLETION_STEPS):
        if ahead.is_accepting():
            return _in_fewer_tokens(vocabulary, matcher, path)
        step = ahead.compute_ff_tokens() or _closing_byte(vocabulary, ahead, lately)
        refuse_failed(ahead)
        if not step or ahead.try_consume_tokens(step) != len(step):
            return None
        path += step
    return None


def _closing_byte(vocabulary: Vocabulary, matcher: LLMatcher, lately: deque[int]) -> list[int]:
    """The token of the byte to try, none without one; `lately` are those tried before."""
    order = _BETWEEN
    if all(_is_allowed(vocabulary, matcher, byte) for byte in _ONLY_IN_TEXT):
        is_behind_letter = bool(lately) and chr(lately[-1]).isalnum()
        order = _BEHIND_LETTERS if is_behind_letter else _BEHIND_OTHERS
    tried = set(lately).difference(_ENDS)
    # Without lists: the first few bytes of an order are nearly always enough.
    first = (byte for byte in order if byte not in tried)
    for byte in chain(first, (byte for byte in order if byte in tried)):
        if _is_allowed(vocabulary, matcher, byte):
            lately.append(byte)
            return [vocabulary.byte_ids[byte]]
    return []


def _is_allowed(vocabulary: Vocabulary, matcher: LLMatcher, byte: int) -> bool:
    # Not by a mask, which takes as long as fifty of these.
    token_id = vocabulary.byte_ids.get(byte)
    return token_id is not None and matcher.validate_tokens([token_id]) == 1


def _in_fewer_tokens(vocabulary: Vocabulary, matcher: LLMatcher, path: list[int]) -> list[int]:
    """The same bytes as a tokeniser would write them, where the grammar takes them like that."""
    tokens = vocabulary.trie.tokenize_bytes(vocabulary.trie.decode_bytes(path))
    fewer = len(tokens) < len(path) and matcher.validate_tokens(tokens) == len(tokens)
    return tokens if fewer else path


class _Look(NamedTuple):
    """The way to an end that was found at a position, if any, and whether it has to be taken.

    Where it need not be, the next look is at position `until`.
    """

    position: int
    way: list[int] | None
    is_due: bool
    until: int


class Closing:
    """When one request's output has to be led to its end. `shortest` is from its beginning.

    Looking for a way takes as long as many masks, so it is done seldom while there is room to
    spare, and not where the last one still leads to an end, as it does inside a text. One that has
    to be taken is known to its end. Rows are asked for in order: of drafts that turn out wrong,
    again, and what was found behind them is forgotten.
    """

    def __init__(self, shortest: list[int] | None, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._every = max(1, min(MAX_EVERY, max_tokens // 16))
        self._looks: list[_Look] = []
        # Without a way, or with none that fits, the model chooses and the limit ends it.
        shortest_len = max_tokens if shortest is None else len(shortest)
        spare = max_tokens - shortest_len - 1
        # One more item of a list is seldom longer than the whole at its shortest.
        self._margin = max(0, min(max(MIN_MARGIN, shortest_len), max_tokens // 3, spare))
        self._zone = 2 * shortest_len + 2 * self._margin + self._every if spare >= 0 else 0

    def next_token(
        self, vocabulary: Vocabulary, matcher: LLMatcher, num_output_tokens: int
    ) -> int | None:
        """The only token to allow in the row behind so many; EOS at the end; None for any."""
        if self._max_tokens - num_output_tokens > self._zone:
            return None
        looks = self._looks
        while looks and looks[-1].position >= num_output_tokens:
            looks.pop()
        last = looks[-1] if looks else None
        if last is None or (not last.is_due and last.until <= num_output_tokens):
            known = None if last is None else last.way
            last = self._look(vocabulary, matcher, num_output_tokens, known)
            looks.append(last)
        if not last.is_due or last.way is None:
            return None
        ahead = num_output_tokens - last.position
        return last.way[ahead] if ahead < len(last.way) else vocabulary.eos_token_id

    def _look(
        self, vocabulary: Vocabulary, matcher: LLMatcher, position: int, known: list[int] | None
    ) -> _Look:
        if known is not None and self._spare(position, known) > 0:
            ending = [*known, vocabulary.eos_token_id]
            if matcher.validate_tokens(ending) == len(ending):
                return self._free(position, known)
        way = completion(vocabulary, matcher)
        if way is None or self._spare(position, way) > 0:
            return self._free(position, way)
        return _Look(position, way, is_due=True, until=position)

    def _free(self, position: int, way: list[int] | None) -> _Look:
        spare = 0 if way is None else self._spare(position, way)
        until = position + max(self._every, spare // SPARE_SHARE)
        return _Look(position, way, is_due=False, until=until)

    def _spare(self, position: int, way: list[int]) -> int:
        """How many tokens are left beyond those of the way, the end, and the margin."""
        return self._max_tokens - position - len(way) - 1 - self._margin - self._every
