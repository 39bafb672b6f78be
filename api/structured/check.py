"""Whether a grammar can be followed at all: tried on bytes, before a request costs anything.

Exercised by `pytest tests/unit/structured/test_json_schema.py`.
"""

from __future__ import annotations

from functools import lru_cache

from hasten.api.structured.closing import completion
from hasten.api.structured.compiler import (
    MAX_GRAMMAR_LEN,
    GrammarError,
    byte_vocabulary,
    refuse_failed,
)

MAX_REMEMBERED = 256


@lru_cache(MAX_REMEMBERED)
def check_grammar(grammar: str) -> None:
    """Raises GrammarError for one that is wrong, that holds nothing, or that is too complex."""
    if len(grammar) > MAX_GRAMMAR_LEN:
        raise GrammarError(f"holds {len(grammar)} characters, at most {MAX_GRAMMAR_LEN}")
    vocabulary = byte_vocabulary()
    try:
        matcher = vocabulary.matcher(grammar)
    except GrammarError as error:
        if str(error).startswith("panic: "):
            # What follows tells of the compiler's insides.
            raise GrammarError("cannot be compiled: is there a special token in it?") from error
        raise
    matcher.compute_bitmask()
    refuse_failed(matcher)
    completion(vocabulary, matcher)
