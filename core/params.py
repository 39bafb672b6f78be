"""What one request asks of generation, in token ids: the form that reaches the engine.

Text-level wishes (stop strings, bad words as text) belong to `hasten.api`, which turns them into
these. An object is valid once constructed. Exercised by `pytest tests/unit/core/test_params.py`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec
from hasten.core.draft_counters import MAX_DEPTH
from hasten.kernels.step import MAX_LOGPROBS

MAX_SEED = 2**64 - 1
MIN_POSITIVE, MAX_FACTOR = 2.0**-126, 2.0**126
"""Sampling computes in float32, where less than the first is 0 and more than the second ends in
infinity: a `top_p` of 0 fits no step, and a factor of 0 or infinity turns logits into NaN."""


class InvalidParameterError(ValueError):
    """A request parameter is out of range; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Speculative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one request asks of speculation: less than the server does, or one way of guessing.

    `max_depth` None leaves the depth to the server, `method` None the choice among its methods.
    """

    enabled: bool = True
    max_depth: int | None = None
    method: str | None = None


class Beam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A beam search in place of sampling: `width` hypotheses go on side by side.

    One that has finished scores its cumulative log-probability / tokens ** `length_penalty`.
    `early_stopping` says when the search ends, once `width` have finished: True at once; False
    when the best that goes on would not score better than the worst of them if it ended now;
    "never" when none that goes on can ever score better.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


MAX_BEAM_WIDTH = MAX_LOGPROBS // 2
"""A hypothesis reports twice the width of next tokens, and that many are as many as there are."""
MAX_LENGTH_PENALTY = 10.0

NEUTRAL_TO_BEAMS: dict[str, Any] = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "bad_words": (),
    "allowed_token_ids": None,
    "min_tokens": 0,
}
"""A beam search ranks by the model's own probabilities: what would change them has to be this."""


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling and stopping of one request.

    Raises InvalidParameterError when a field is out of range. `logprobs` and `prompt_logprobs`
    are None (none) or how many alternatives to report beside the token's own (0..20).
    `bad_words` are token sequences whose last token is forbidden where the ones before it stand.
    `grammar` is what the output must follow, in the form that the engine's `Grammars` takes; empty
    for anything. It decides where the output ends, and which tokens there are, so parameters that
    decide the same cannot be given beside it.
    With `beam` the n samples are the best hypotheses of a beam search, the best first.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculative: Speculative = Speculative()
    grammar: str = ""
    beam: Beam | None = None

    def __post_init__(self) -> None:
        _check_range("max_tokens", self.max_tokens, 1, None)
        _check_range("seed", self.seed, 0, MAX_SEED)
        _check_range("temperature", self.temperature, 0.0, 2.0)
        _check_range("top_k", self.top_k, 0, None)
        _check_positive("top_p", self.top_p, "in (0, 1]", 1.0)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_positive("repetition_penalty", self.repetition_penalty, "positive", MAX_FACTOR)
        for token_id, bias in self.logit_bias.items():
            _check_range(f"logit_bias.{token_id}", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidParameterError("allowed_token_ids", "must not be empty")
        if any(not word for word in self.bad_words):
            raise InvalidParameterError("bad_words", "holds an empty word")
        _check_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.allowed_token_ids is not None:
            self._check_some_left(self.allowed_token_ids)
        _check_range("n", self.n, 1, 128)
        for field, count, limit in (
            ("logprobs", self.logprobs, MAX_LOGPROBS),
            ("prompt_logprobs", self.prompt_logprobs, MAX_LOGPROBS),
            ("speculative.max_depth", self.speculative.max_depth, MAX_DEPTH),
        ):
            if count is not None:
                _check_range(field, count, 0, limit)
        if self.grammar:
            self._check_grammar_alone()
        if self.beam is not None:
            self._check_beam(self.beam)

    def _check_some_left(self, allowed: tuple[int, ...]) -> None:
        """Whatever has been written, there must be a token to go on with."""
        forbidden = {word[-1] for word in self.bad_words}
        if self.min_tokens:
            forbidden |= self.terminal_token_ids
        if forbidden.issuperset(allowed):
            reason = "bad_words or min_tokens may forbid all of them"
            raise InvalidParameterError("allowed_token_ids", reason)

    def _check_grammar_alone(self) -> None:
        for field in ("ignore_eos", "min_tokens", "bad_words", "allowed_token_ids"):
            if getattr(self, field):
                raise InvalidParameterError(field, "cannot be combined with structured output")

    def _check_beam(self, beam: Beam) -> None:
        _check_range("beam.width", beam.width, 1, MAX_BEAM_WIDTH)
        _check_range("n", self.n, 1, beam.width)
        limit = MAX_LENGTH_PENALTY
        _check_range("beam.length_penalty", beam.length_penalty, -limit, limit)
        if beam.early_stopping not in (True, False, "never"):
            reason = f"must be true, false or 'never', got {beam.early_stopping!r}"
            raise InvalidParameterError("beam.early_stopping", reason)
        if self.temperature not in (0.0, 1.0):
            raise InvalidParameterError("temperature", "beam search does not sample: leave it out")
        for field, neutral in NEUTRAL_TO_BEAMS.items():
            if getattr(self, field) != neutral:
                raise InvalidParameterError(field, "cannot be combined with beam search")
        if self.grammar:
            raise InvalidParameterError("beam", "cannot be combined with structured output")

    @property
    def terminal_token_ids(self) -> frozenset[int]:
        """The token ids that end the output: stop tokens, and EOS unless ignored."""
        eos = () if self.ignore_eos else self.eos_token_ids
        return frozenset((*eos, *self.stop_token_ids))


def _check_positive(field: str, value: float, allowed: str, high: float) -> None:
    if not MIN_POSITIVE <= value <= high:
        in_float32 = " in float32" if 0.0 < value < MIN_POSITIVE or value > MAX_FACTOR else ""
        raise InvalidParameterError(field, f"must be {allowed}{in_float32}, got {value}")


def _check_range(field: str, value: float, low: float, high: float | None) -> None:
    if math.isnan(value) or value < low or (high is not None and value > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidParameterError(field, f"must be {allowed}, got {value}")
