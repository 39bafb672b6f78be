"""Whether a draft model speaks the served model's tokens: a token id must mean the same to both.

Exercised by `pytest tests/cpu/spec/test_build.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.options import ConfigurationError

if TYPE_CHECKING:
    from hasten.api.text.tokenizer import Tokenizer
    from hasten.core.options import EngineOptions


def check_draft_vocabulary(options: EngineOptions) -> None:
    """Raise ConfigurationError with the first token that differs; LoadError without a tokeniser."""
    draft = options.speculation.spec_draft_model
    if draft is None:
        return
    # Here and not above: engines without a draft model need no tokeniser.
    from hasten.api.text.tokenizer import load_tokenizer

    own = load_tokenizer(options.model.tokenizer or options.model.model)
    reason = _difference(own, load_tokenizer(draft))
    if reason is not None:
        raise ConfigurationError(
            f"--spec-draft-model {draft} cannot draft for this model: {reason}"
        )


def _difference(own: Tokenizer, other: Tokenizer) -> str | None:
    if own.vocab_size != other.vocab_size:
        return f"it has {other.vocab_size} tokens, the model {own.vocab_size}"
    for token_id in range(own.vocab_size):
        mine, theirs = own.token_bytes(token_id), other.token_bytes(token_id)
        if mine != theirs:
            return f"token {token_id} is {theirs!r} there and {mine!r} here"
    return None
