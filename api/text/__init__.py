"""Between text and token ids: tokeniser, chat template, detokeniser, stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hasten.api.text.detokenizer import TokenBytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hasten.api.text.tokenizer import TokenizerInfo

__all__ = ["TextCodec", "TokenBytes"]


class TextCodec(TokenBytes, Protocol):
    """What the front ends ask of a tokeniser (`tokenizer.Tokenizer`; tests have a smaller one)."""

    info: TokenizerInfo

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str: ...
