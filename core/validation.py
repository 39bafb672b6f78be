"""What the engine refuses before a request costs anything: token ids and lengths.

Ranges of single parameters are checked when `GenerationParams` is made; here is what needs the
model. Exercised by `pytest tests/unit/core/test_engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hasten.core.messages import AddRequest
    from hasten.core.params import GenerationParams


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the model, its memory and the options admit."""

    vocab_size: int
    max_model_len: int
    spec_methods: frozenset[str] = frozenset()
    embeds: bool = False


def why_refused(request: AddRequest, limits: ModelLimits) -> tuple[str, str] | None:
    """None, or the field at fault and why, with the numbers."""
    prompt = request.prompt_token_ids
    if not prompt:
        return "prompt", "the prompt holds no token"
    for field, token_ids in (("prompt", prompt), *_token_ids(request.params)):
        outside = _first_outside(token_ids, limits.vocab_size)
        if outside is not None:
            return field, f"token id {outside} is outside the vocabulary of {limits.vocab_size}"
    if request.pooling and not limits.embeds:
        return "pooling", "this server embeds nothing (--enable-embeddings)"
    method = request.params.speculative.method
    if method is not None and method not in limits.spec_methods:
        known = ", ".join(sorted(limits.spec_methods)) or "none (see --spec-method)"
        return "speculative.method", f"{method!r} is not a method of this server: {known}"
    beam = request.params.beam
    if beam is not None and 2 * beam.width > limits.vocab_size:
        return "beam.width", f"{beam.width}: the vocabulary has {limits.vocab_size} tokens"
    return _why_too_long(len(prompt), request.params.max_tokens, limits.max_model_len)


def _why_too_long(num_prompt: int, max_tokens: int, max_model_len: int) -> tuple[str, str] | None:
    if num_prompt >= max_model_len:
        return "prompt", (
            f"the prompt has {num_prompt} tokens; this server's limit for prompt and output "
            f"together is {max_model_len}"
        )
    if num_prompt + max_tokens > max_model_len:
        return "max_tokens", (
            f"{num_prompt} prompt tokens and max_tokens {max_tokens} are {num_prompt + max_tokens} "
            f"in all; this server's limit is {max_model_len}: ask for at most "
            f"{max_model_len - num_prompt}"
        )
    return None


def _token_ids(params: GenerationParams) -> Iterator[tuple[str, Iterable[int]]]:
    """Every list of token ids among the parameters that a step will index logits with."""
    yield "logit_bias", params.logit_bias
    yield "allowed_token_ids", params.allowed_token_ids or ()
    yield "bad_words", (token_id for word in params.bad_words for token_id in word)
    if params.min_tokens:
        yield "stop_token_ids", params.stop_token_ids


def _first_outside(token_ids: Iterable[int], vocab_size: int) -> int | None:
    return next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
