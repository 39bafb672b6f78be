"""What a client may ask of generation, in text: the public form of sampling parameters.

`SamplingParams.resolve` turns it into the engine's `GenerationParams` and the text-level
`StopRules`. Exercised by `pytest tests/unit/api/test_params.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from hasten.api.text.sample_text import StopRules
from hasten.core.params import Beam, GenerationParams, InvalidParameterError, Speculative

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.api.text import TextCodec

MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LEN = 1024  # characters
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LEN = 256  # characters


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the server knows that a request does not say.

    `default_max_tokens` is used when the request names no limit.
    """

    tokenizer: TextCodec
    eos_token_ids: tuple[int, ...]
    default_max_tokens: int
    seed: int


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling and stopping, as OpenAI's API and vLLM name them.

    `max_tokens` None lets the output fill what the context holds. `logprobs` and
    `prompt_logprobs` are how many alternatives to report beside each token's own (0..20), None
    for none. `skip_special_tokens` False shows special tokens as text. `grammar` is what the output
    has to follow, as `api.structured` makes it. With `beam` the n samples are the best hypotheses
    of a beam search instead. Types and ranges are checked by `resolve`.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculative: Speculative = Speculative()
    grammar: str = ""
    beam: Beam | None = None

    def resolve(self, context: RequestContext) -> GenerationParams:
        """The form that reaches the engine. Raises InvalidParameterError naming the field."""
        _check_types(self)
        _check_stop_strings(self.stop)
        if self.beam is not None and self.stop:
            reason = "cannot be combined with beam search; stop_token_ids can"
            raise InvalidParameterError("stop", reason)
        max_tokens = context.default_max_tokens if self.max_tokens is None else self.max_tokens
        return GenerationParams(
            max_tokens=max_tokens,
            seed=context.seed if self.seed is None else self.seed,
            temperature=self.temperature,
            # vLLM's name for "off" is -1 as well as 0.
            top_k=0 if self.top_k == -1 else self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            bad_words=tuple(_bad_word_ids(self.bad_words, context.tokenizer)),
            allowed_token_ids=self.allowed_token_ids,
            min_tokens=self.min_tokens,
            eos_token_ids=context.eos_token_ids,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            n=self.n,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            speculative=self.speculative,
            grammar=self.grammar,
            beam=self.beam,
        )

    def stop_rules(self, eos_token_ids: tuple[int, ...]) -> StopRules:
        """What ends the text, beyond what ends the tokens."""
        return StopRules(
            stop_strings=self.stop,
            include_stop=self.include_stop_str_in_output,
            min_tokens=self.min_tokens,
            eos_token_ids=frozenset(eos_token_ids),
        )


def _check_types(params: SamplingParams) -> None:
    """From Python anything may come, and the engine's decoder is no place to find out."""
    try:
        msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except (msgspec.ValidationError, TypeError) as error:
        reason, _, place = str(error).partition(" - at `$.")
        raise InvalidParameterError(place.rstrip("`") or "params", reason) from error


def _check_stop_strings(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidParameterError(
            "stop", f"holds {len(stop)} strings, at most {MAX_STOP_STRINGS}"
        )
    for text in stop:
        if not text:
            raise InvalidParameterError("stop", "holds an empty string")
        if len(text) > MAX_STOP_STRING_LEN:
            raise InvalidParameterError(
                "stop", f"holds a string of {len(text)} characters, at most {MAX_STOP_STRING_LEN}"
            )


def _bad_word_ids(bad_words: tuple[str, ...], tokenizer: TextCodec) -> Iterator[tuple[int, ...]]:
    """The token sequences of each word: at the start of a text and after a space."""
    if len(bad_words) > MAX_BAD_WORDS:
        raise InvalidParameterError(
            "bad_words", f"holds {len(bad_words)} words, at most {MAX_BAD_WORDS}"
        )
    for word in bad_words:
        if not word.strip():
            raise InvalidParameterError("bad_words", "holds an empty word")
        if len(word) > MAX_BAD_WORD_LEN:
            raise InvalidParameterError(
                "bad_words", f"holds one of {len(word)} characters, at most {MAX_BAD_WORD_LEN}"
            )
        variants = {
            tuple(tokenizer.encode(text, add_special_tokens=False))
            for text in (word, " " + word.lstrip())
        }
        yield from sorted(variants)
