"""A request inside the engine: one sample of what a client asked for.

Pure bookkeeping: no torch, no clock, no randomness. A request with n samples is n `Request`
objects that share `group_id`.

    token_ids      [ prompt ........ | output ..... ]
                     num_computed ->|                   KV in the cache for these
    draft_token_ids                                  [ d d d ]  not accepted yet
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

from hasten.core.params import GenerationParams
from hasten.core.prefix_hash import BlockHash

RequestId = NewType("RequestId", str)


class RequestStatus(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a sample ended, as OpenAI's API names it where it does."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    OVERLOAD = "overload"
    ERROR = "error"
    GRAMMAR = "grammar"


@dataclass(slots=True, eq=False)
class Request:
    """One sample. The scheduler moves `num_computed_tokens` towards `num_tokens`.

    `arrival` is the engine-wide order of arrival (never changes, also across preemption).
    A lower `priority` is served earlier; `client` names who asks. `cache_extra` goes into the hash
    of every block (salt, adapter id). `num_cached_tokens` is what the prefix cache spared it when
    it was first let in. A hypothesis of a beam search was forked from another when that had
    `num_inherited_tokens`, which the two share. `block_hashes` belongs to the block manager: the
    hash chain of its full blocks, as far as it was needed yet; tokens are only ever appended, so it
    stays valid across preemption.
    """

    request_id: RequestId
    group_id: str
    prompt_token_ids: tuple[int, ...]
    params: GenerationParams
    arrival: int
    sample_idx: int = 0
    priority: int = 0
    client: str = ""
    cache_extra: bytes = b""
    pooling: str = ""
    token_ids: list[int] = field(default_factory=list)
    draft_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_inherited_tokens: int = 0
    num_preemptions: int = 0
    num_tokens_at_preemption: int = 0
    num_computed_at_preemption: int = 0
    block_hashes: list[BlockHash] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        if not self.prompt_token_ids:
            raise ValueError(f"request {self.request_id}: the prompt holds no token")
        if not self.token_ids:
            self.token_ids = list(self.prompt_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and accepted output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def is_held(self) -> bool:
        """Whether all its tokens are computed: it waits for what its siblings' steps give."""
        return self.num_computed_tokens == len(self.token_ids)

    @property
    def has_begun(self) -> bool:
        """Whether it waits to go on, rather than for its turn."""
        return self.num_preemptions > 0 or self.num_output_tokens > 0

    @property
    def has_siblings(self) -> bool:
        """Whether others of its group share what it begins with."""
        return self.params.n > 1 or self.params.beam is not None

    @property
    def fork_position(self) -> int:
        """The first token to compute where it forks a sibling.

        That is the prompt's last, whose logits every sample needs, or what a hypothesis did not
        inherit.
        """
        return self.num_inherited_tokens or self.num_prompt_tokens - 1

    @property
    def scores_prompt(self) -> bool:
        """Whether the tokens it computes now want logits at every position, to be scored.

        Only until its first output: a prompt recomputed after that was delivered already.
        """
        return self.params.prompt_logprobs is not None and self.num_output_tokens == 0

    @property
    def uses_prefix_cache(self) -> bool:
        """Scored and pooled prompts are computed whole, in blocks that nobody else may see."""
        return self.params.prompt_logprobs is None and self.pooling != "mean"

    @property
    def max_total_tokens(self) -> int:
        """The most tokens it can ever hold."""
        return len(self.prompt_token_ids) + self.params.max_tokens
