"""One sample's output: from the engine's tokens to text that may be shown.

    tokens -> detokeniser -> stop strings -> delta
                                 | held back while a stop string may be under way

A token's record (its log-probabilities) is released together with the first character of its text,
so records never give away a held-back stop string, and those of tokens that lie wholly behind the
end of the text are dropped. Exercised by `pytest tests/unit/text/test_sample_text.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.api.text.detokenizer import Detokenizer, TokenBytes
from hasten.api.text.stop import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.messages import PositionLogprobs, TokenOutput


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A generated token. `text_offset` counts the characters of output before it."""

    token_id: int
    text_offset: int
    logprobs: PositionLogprobs | None


@dataclass(frozen=True, slots=True)
class SampleDelta:
    """What one step lets a client see of one sample.

    `num_tokens` counts the tokens that the step added, shown or not. `finish_reason` is "stop",
    "length" or "abort", None while the sample goes on; `stop_reason` is the stop string, or the id
    of the stop token other than EOS, that ended it. `prompt_logprobs` and `queue_s`, the time until
    the sample was let in, come once. Of `num_drafts` that the step verified, `num_accepted_drafts`
    were right.
    """

    sample_idx: int
    text: str
    tokens: Sequence[TokenRecord]
    num_tokens: int
    num_cached_tokens: int
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    queue_s: float | None = None
    num_drafts: int = 0
    num_accepted_drafts: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether a client would see nothing new."""
        return not self.text and not self.tokens and self.finish_reason is None


@dataclass(frozen=True, slots=True)
class StopRules:
    """When a text ends, and what of its end is shown. `min_tokens` delays stop strings too."""

    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()


class SampleText:
    """Turns the `TokenOutput`s of one sample into `SampleDelta`s.

    After a delta with a finish reason, later outputs (already on the way when the text ended)
    must not be pushed.
    """

    def __init__(self, vocabulary: TokenBytes, rules: StopRules, sample_idx: int = 0) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._rules = rules
        self._matcher = StopMatcher(rules.stop_strings, include_match=rules.include_stop)
        self._sample_idx = sample_idx
        self._held_tokens: deque[TokenRecord] = deque()
        self._num_decoded = 0  # characters
        self._num_released = 0  # characters
        self._num_tokens = 0

    def push(self, output: TokenOutput) -> SampleDelta:
        """Take what a step produced; returns what it lets the client see."""
        num_before = self._num_tokens
        pieces: list[str] = []
        for i, token_id in enumerate(output.token_ids):
            logprobs = output.logprobs[i] if output.logprobs is not None else None
            pieces.append(self._take(token_id, logprobs, hidden=self._is_hidden(output, i)))
            if self._matcher.matched is not None:
                break
        finish_reason, stop_reason = self._ending(output)
        if finish_reason is not None:
            pieces.append(self._finish())
        text = "".join(pieces)
        self._num_released += len(text)
        return SampleDelta(
            sample_idx=self._sample_idx,
            text=text,
            tokens=self._release_tokens(finish_reason),
            num_tokens=self._num_tokens - num_before,
            num_cached_tokens=output.num_cached_tokens,
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            queue_s=output.queue_s,
            num_drafts=output.num_drafts,
            num_accepted_drafts=output.num_accepted_drafts,
        )

    def _take(self, token_id: int, logprobs: PositionLogprobs | None, *, hidden: bool) -> str:
        self._held_tokens.append(TokenRecord(token_id, self._num_decoded, logprobs))
        self._num_tokens += 1
        text = "" if hidden else self._detokenizer.push(token_id)
        self._num_decoded += len(text)
        # The same rule as for stop tokens: they may not end the first min_tokens tokens.
        return text if self._num_tokens <= self._rules.min_tokens else self._matcher.push(text)

    def _is_hidden(self, output: TokenOutput, i: int) -> bool:
        """Whether this is the stop token that ended the sample, whose text is not shown."""
        is_last = i == len(output.token_ids) - 1
        return is_last and output.stop_token_id is not None and not self._rules.include_stop

    def _ending(self, output: TokenOutput) -> tuple[str | None, str | int | None]:
        if self._matcher.matched is not None:
            return "stop", self._matcher.matched
        stop_token_id = output.stop_token_id
        is_eos = stop_token_id is None or stop_token_id in self._rules.eos_token_ids
        return output.finish_reason, None if is_eos else stop_token_id

    def _finish(self) -> str:
        """The rest of the text."""
        if self._matcher.matched is not None:
            return ""
        return self._matcher.finish() + self._detokenizer.finish()

    def _release_tokens(self, finish_reason: str | None) -> list[TokenRecord]:
        """The records of tokens whose text has begun to show; at a natural end, all."""
        held = self._held_tokens
        everything = finish_reason is not None and self._matcher.matched is None
        released: list[TokenRecord] = []
        while held and (everything or held[0].text_offset < self._num_released):
            released.append(held.popleft())
        return released
