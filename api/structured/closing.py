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
from typing import TYPE_CHECKING

import numpy as np
from hasten.api.structured.compiler import refuse_failed

if TYPE_CHECKING:
    from hasten.api.structured.compiler import Vocabulary
    from llguidance import LLMatcher

MAX_COMPLETION_STEPS = 512
"""Bytes or forced tokens: a way that has not ended by then counts as endless."""
MAX_MARGIN = 32  # tokens
FREE_TEXT = 40
"""Where so many of the printable characters may follow, they are text; in numbers and between
values there are fewer."""

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
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    ids = {byte: i for byte, i in vocabulary.byte_ids.items() if allowed[i]}
    order = _BETWEEN
    if sum(byte in ids for byte in _PRINTABLE) >= FREE_TEXT:
        is_behind_letter = bool(lately) and chr(lately[-1]).isalnum()
        order = _BEHIND_LETTERS if is_behind_letter else _BEHIND_OTHERS
    candidates = [byte for byte in order if byte in ids]
    candidates.sort(key=lambda byte: byte in lately and byte not in _ENDS)  # stable
    lately.extend(candidates[:1])
    return [ids[byte] for byte in candidates[:1]]


def _in_fewer_tokens(vocabulary: Vocabulary, matcher: LLMatcher, path: list[int]) -> list[int]:
    """The same bytes as a tokeniser would write them, where the grammar takes them like that."""
    tokens = vocabulary.trie.tokenize_bytes(vocabulary.trie.decode_bytes(path))
    fewer = len(tokens) < len(path) and matcher.validate_tokens(tokens) == len(tokens)
    return tokens if fewer else path


class Closing:
    """When one request's output has to be led to its end. `shortest` is from its beginning."""

    def __init__(self, shortest: list[int] | None, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._margin = min(MAX_MARGIN, max_tokens // 4)
        self._zone = 0
        # Where the limit leaves no choice at all, the model chooses and the limit ends it.
        if shortest is not None and len(shortest) + 1 + self._margin < max_tokens:
            # Looking for a way takes as long as many masks, so nothing is asked far from the limit.
            self._zone = 2 * len(shortest) + 4 * self._margin

    def next_token(
        self, vocabulary: Vocabulary, matcher: LLMatcher, num_output_tokens: int
    ) -> int | None:
        """The only token to allow in the row behind so many; EOS at the end; None for any."""
        remaining = self._max_tokens - num_output_tokens
        if remaining > self._zone:
            return None
        path = completion(vocabulary, matcher)
        # The end is a token too.
        if path is None or len(path) + 1 + self._margin < remaining:
            return None
        return path[0] if path else vocabulary.eos_token_id
