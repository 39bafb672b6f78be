"""Grammars and the vocabulary that they are matched against: llguidance, within bounds.

A grammar is a string: llguidance's own JSON, or its dialect of Lark. Compiling builds an Earley
parser over lexemes; each mask walks the vocabulary's trie. Both run against fuel, which counts work
and not time, so a grammar is too complex on every machine or on none.

llguidance is imported when it is first needed: servers that are never asked for structured output
stay smaller by as much.
Exercised by `pytest tests/unit/structured`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from hasten.core.loading import LoadError

if TYPE_CHECKING:
    import llguidance

MAX_GRAMMAR_LEN = 1 << 17
"""Characters: some ten milliseconds to compile. A grammar is read whole, so fuel comes too late."""

_IN_TEXT = r'[^"\\\x00-\x1F\x7F]'
SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_IN_TEXT}{{1,{n}}}" for n in (2, 4, 6, 8, 12, 16)),
    f"{_IN_TEXT}+",
]
"""Lexemes whose tokens are known beforehand: where a grammar takes one whole, they are not tried.

Those of limited length are for texts with a limit (`maxLength`): with llguidance's own, of up to
10, 30 and any number of characters, a mask inside such a text took 130 us instead of 10."""


def limits() -> llguidance.LLParserLimits:
    """A mask within these takes a few milliseconds at worst, a matcher some 20 MB."""
    import llguidance

    return llguidance.LLParserLimits(
        max_items_in_row=5000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or that is too complex to be followed."""


class Tokens(Protocol):
    """What a vocabulary needs of a tokeniser (`api.text.tokenizer.Tokenizer`)."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_token_ids(self) -> frozenset[int]: ...

    @property
    def eos_token_id(self) -> int | None: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


class Vocabulary:
    """The tokens of a model as a trie of bytes. Takes a third of a second to build.

    Raises LoadError for a tokeniser that names no end of text.
    """

    def __init__(self, tokenizer: Tokens) -> None:
        import llguidance

        if tokenizer.eos_token_id is None:
            raise LoadError("structured output needs a tokeniser that names its end-of-text token")
        tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.eos_token_id = tokenizer.eos_token_id
        self.num_words = -(-len(tokens) // 32)
        # From the last to the first, so that of equal tokens the first stays.
        self.byte_ids = {t[0]: i for i, t in reversed(list(enumerate(tokens))) if len(t) == 1}
        wrapped = llguidance.TokenizerWrapper(_Wrapped(tokenizer, tokens))
        # They are worth the time they take to prepare only for large vocabularies.
        slices = SLICES if len(tokens) > len(self.byte_ids) + 1 else []
        self.trie = llguidance.LLTokenizer(wrapped, n_vocab=len(tokens), slices=slices)

    def matcher(self, grammar: str) -> llguidance.LLMatcher:
        """At the beginning of an output. Raises GrammarError."""
        import llguidance

        matcher = llguidance.LLMatcher(self.trie, grammar, log_level=0, limits=limits())
        refuse_failed(matcher)
        return matcher


class _Wrapped:
    """What llguidance wants to know of a tokeniser."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokens, tokens: list[bytes]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_id
        # Special tokens are no text, so no grammar over text allows them.
        self.tokens = tokens
        self.special_token_ids = sorted(tokenizer.special_token_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


class _Bytes:
    """The vocabulary of bytes, and an end of text: what a grammar takes is the same with any."""

    vocab_size = 257
    eos_token_id = 256
    special_token_ids = frozenset({256})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002  the interface
        return list(text.encode())


@lru_cache(1)
def byte_vocabulary() -> Vocabulary:
    """For checking grammars where no model is: built in no time."""
    return Vocabulary(_Bytes())


def refuse_failed(matcher: llguidance.LLMatcher) -> None:
    """Raises GrammarError for a matcher that cannot go on."""
    if matcher.is_error():
        raise GrammarError(_KNOWN.get(error := first_line(matcher.get_error()), error))


_KNOWN = {
    "": "is too complex",
    "NoExtension": "allows no output",
    "NoExtensionBias": "allows no output",
}


def first_line(message: str) -> str:
    """What fits an error message: llguidance draws arrows below what it complains of."""
    lines = [line.strip() for line in message.splitlines()]
    return "; ".join(line for line in lines if line.strip("^ ~") and line != "<non-verbose/>")[:500]
