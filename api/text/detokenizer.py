"""Token ids to text, one token at a time.

The text of a sequence is defined as its tokens' bytes, joined and decoded as UTF-8 with U+FFFD in
place of what is invalid. Decoding incrementally keeps only the few bytes of a character that is
not complete yet, so it takes linear time, and the pieces joined are the whole text by construction.
Exercised by `pytest tests/unit/text/test_detokenizer.py`.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hasten.api.text import TextCodec

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """The part of a tokeniser that turning ids into text needs."""

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to the text, in UTF-8; nothing for a special token.

        A token may hold a part of a character.
        """
        ...


class SpecialTokensShown:
    """A vocabulary whose special tokens are text like all others."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec

    def token_bytes(self, token_id: int) -> bytes:
        raw = self._codec.token_bytes(token_id)
        return raw or self._codec.decode([token_id], skip_special_tokens=False).encode()


class MarkersShown:
    """A vocabulary of whose special tokens those are text that a parser has to see."""

    def __init__(self, codec: TextCodec, markers: Iterable[str]) -> None:
        self._codec = codec
        self._markers = frozenset(markers)

    def token_bytes(self, token_id: int) -> bytes:
        raw = self._codec.token_bytes(token_id)
        if raw:
            return raw
        text = self._codec.decode([token_id], skip_special_tokens=False)
        return text.encode() if text in self._markers else b""


class Detokenizer:
    """The text of one growing sequence."""

    def __init__(self, vocabulary: TokenBytes) -> None:
        self._vocabulary = vocabulary
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        return self._decoder.decode(self._vocabulary.token_bytes(token_id))

    def finish(self) -> str:
        """What stands for a character that never became complete."""
        return self._decoder.decode(b"", final=True)


def text_of(vocabulary: TokenBytes, token_ids: Iterable[int]) -> str:
    """The text of a whole sequence."""
    return b"".join(map(vocabulary.token_bytes, token_ids)).decode("utf-8", errors="replace")
