"""What can be measured: anything that scores given tokens and continues prompts.

A target is an engine in this process (`engine_target`), the URL of a server (`url_target`) or the
stored answers of one of them (`memory`). All greedy; sequences are token ids of the target's own
tokeniser. Exercised by every test of `evals`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.configuration import Configuration
    from hasten.evals.distribution import F32, Distribution

Message = dict[str, str]


class TargetError(RuntimeError):
    """The target could not answer: it died, timed out, or does not offer what was asked for."""


class CannotMeasureError(TargetError):
    """The target is well but does not offer this measurement; others can go on."""


class Scored(msgspec.Struct, frozen=True):
    """A sequence whose tokens from position `start` on (at least 1) are to be scored."""

    token_ids: tuple[int, ...]
    start: int


class TokenScores(msgspec.Struct, frozen=True):
    """Of each scored token its log-probability, and the most likely token in its place."""

    logprobs: list[float]
    top_ids: list[int]
    top_logprobs: list[float]

    @property
    def total(self) -> float:
        return sum(self.logprobs)

    def all_greedy(self) -> bool:
        """Whether every scored token is (one of) the most likely."""
        pairs = zip(self.logprobs, self.top_logprobs, strict=True)
        return all(logprob >= top for logprob, top in pairs)


class Prompt(msgspec.Struct, frozen=True):
    """Continue these tokens greedily. `stop` strings end the text and are not part of it.

    With a `schema` (JSON Schema, as JSON) the text is made to follow it.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    schema: str = ""


class Continuation(msgspec.Struct, frozen=True):
    """What a target made of a prompt. `token_ids` end with the EOS token if it was chosen."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


class Timing(msgspec.Struct, frozen=True):
    """When the tokens of one streamed request arrived, in seconds after it was sent."""

    sent_s: float  # since the load began
    arrivals_s: list[float]

    @property
    def ttft_s(self) -> float:
        return self.arrivals_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """The time between tokens; one number per token but the first."""
        pairs = zip(self.arrivals_s, self.arrivals_s[1:], strict=False)
        return [later - earlier for earlier, later in pairs]


class Drafts(msgspec.Struct, frozen=True):
    """Tokens that speculation has guessed so far, and how many of them were right."""

    num_drafted: int
    num_accepted: int

    def since(self, earlier: Drafts) -> Drafts:
        return Drafts(
            self.num_drafted - earlier.num_drafted, self.num_accepted - earlier.num_accepted
        )


class Footprint(msgspec.Struct, frozen=True):
    """Memory that a model takes: once, and for each token that the KV cache holds."""

    weights_bytes: int
    kv_bytes_per_token: float


class Target(Protocol):
    """A model behind a wall; every method may raise TargetError."""

    @property
    def configuration(self) -> Configuration: ...

    @property
    def max_len(self) -> int:
        """The longest sequence, prompt and output, in tokens."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, with no special tokens added."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt that asks for the next assistant message."""
        ...

    def distribution(self, scored: Scored) -> Distribution:
        """What the model expects at each position from `start` on."""
        ...

    def layer_outputs(self, token_ids: tuple[int, ...]) -> dict[str, F32]:
        """What each layer added to the residual stream at the last positions, by weight name.

        In the order of the model; [rows, hidden], the last row that of the last token but one.
        """
        ...

    def score(self, scored: Sequence[Scored]) -> list[TokenScores]:
        """Score tokens through the serving path, many sequences at once."""
        ...

    def continue_greedily(
        self, prompts: Sequence[Prompt], *, fresh_cache: bool = False
    ) -> list[Continuation]:
        """Continue prompts, together in one batch as far as the target allows.

        With `fresh_cache`, nothing computed for earlier calls is reused.
        """
        ...

    def time_load(self, prompts: Sequence[Prompt], concurrency: int) -> list[Timing]:
        """Stream all prompts, `concurrency` at any time, and note when tokens arrive."""
        ...

    def drafts(self) -> Drafts:
        """The counters of speculation; zeros where it is off."""
        ...

    def footprint(self) -> Footprint: ...

    def close(self) -> None: ...
