"""Lengths of prompts, checked before they cost anything.

A long text costs seconds to tokenise, all for nothing when its prompt can never fit. So a text that
looks too long is tokenised piece by piece first, only until it is certain.
Exercised by `pytest tests/unit/text/test_prompt_length.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.params import InvalidParameterError

if TYPE_CHECKING:
    from hasten.api.text import TextCodec

SUSPICIOUS_CHARS_PER_TOKEN = 6
"""Ordinary text has 3 to 5."""
PIECE_CHARS = 1 << 16
PIECES_MAY_ADD = 1.25
"""Pieces count more tokens than the whole, by a few for each cut: certain is what is more."""


def check_prompt_len(num_tokens: int, max_model_len: int, at_least: str = "") -> None:
    """Raises InvalidParameterError for a prompt that leaves no room for any output."""
    if num_tokens >= max_model_len:
        raise InvalidParameterError(
            "prompt",
            f"the prompt has {at_least}{num_tokens} tokens; this server's limit for prompt and "
            f"output together is {max_model_len}",
        )


def encode_prompt(
    tokenizer: TextCodec, text: str, max_model_len: int, *, add_special_tokens: bool = True
) -> list[int]:
    """The token ids of a prompt. Raises InvalidParameterError when it can never fit."""
    if len(text) > SUSPICIOUS_CHARS_PER_TOKEN * max_model_len:
        _refuse_hopeless(tokenizer, text, max_model_len)
    token_ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    check_prompt_len(len(token_ids), max_model_len)
    return token_ids


def _refuse_hopeless(tokenizer: TextCodec, text: str, max_model_len: int) -> None:
    num_tokens = 0.0
    for begin in range(0, len(text), PIECE_CHARS):
        piece = text[begin : begin + PIECE_CHARS]
        num_tokens += len(tokenizer.encode(piece, add_special_tokens=False)) / PIECES_MAY_ADD
        check_prompt_len(int(num_tokens), max_model_len, "at least ")
