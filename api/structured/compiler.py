"""Grammars and the vocabulary that they are matched against: llguidance, within bounds.

A grammar is a string: llguidance's own JSON, or its dialect of Lark. Compiling builds an Earley
parser over lexemes; each mask walks the vocabulary's trie. Both run against fuel, which counts work
and not time, so a grammar is too complex on every machine or on none.
Exercised by `pytest tests/unit/structured/test_compiler.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import llguidance
from hasten.core.loading import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.api.text.tokenizer import Tokenizer

MAX_GRAMMAR_LEN = 1 << 17
"""Characters: some ten milliseconds to compile. A grammar is read whole, so fuel comes too late."""


def limits() -> llguidance.LLParserLimits:
    """A mask within these takes a few milliseconds at worst, a matcher some 20 MB."""
    return llguidance.LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000,
        step_max_items=20_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or that is too complex to be followed."""


class Vocabulary:
    """The tokens of a model as a trie of bytes. Takes a third of a second to build."""

    def __init__(self, tokenizer: Tokenizer, slices: Sequence[str] | None = None) -> None:
        """`slices` are llguidance's precomputed lexemes: None for its own, none for small models.

        Raises LoadError for a tokeniser that names no end of text.
        """
        eos_token_id = tokenizer.eos_token_id
        if eos_token_id is None:
            raise LoadError("structured output needs a tokeniser that names its end-of-text token")
        self.eos_token_id = eos_token_id
        self.num_words = -(-tokenizer.vocab_size // 32)
        self.byte_ids = _byte_ids(tokenizer)
        self.trie = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(tokenizer, eos_token_id)),
            n_vocab=tokenizer.vocab_size,
            slices=None if slices is None else list(slices),
        )

    def matcher(self, grammar: str) -> llguidance.LLMatcher:
        """At the beginning of an output. Raises GrammarError."""
        matcher = llguidance.LLMatcher(self.trie, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise GrammarError(first_line(matcher.get_error()))
        return matcher


class _Tokens:
    """What llguidance wants to know of a tokeniser."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        # Special tokens are no text, so no grammar over text allows them.
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_token_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


def _byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """The token that is just one byte, for each byte that has one."""
    found: dict[int, int] = {}
    for token_id in range(tokenizer.vocab_size):
        raw = tokenizer.token_bytes(token_id)
        if len(raw) == 1:
            found.setdefault(raw[0], token_id)
    return found


def check_grammar(grammar: str) -> None:
    """Raises GrammarError for one that no vocabulary could be matched against."""
    if len(grammar) > MAX_GRAMMAR_LEN:
        raise GrammarError(f"holds {len(grammar)} characters, at most {MAX_GRAMMAR_LEN}")
    is_wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
        grammar, limits=limits()
    )
    if is_wrong:
        raise GrammarError(first_line(messages[0]))


def first_line(message: str) -> str:
    """What fits an error message: llguidance draws arrows below what it complains of."""
    lines = [line.strip() for line in message.splitlines()]
    return "; ".join(line for line in lines if line.strip("^ ~") and line != "<non-verbose/>")[:500]
