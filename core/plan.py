"""The scheduler's decision for one step: who computes how many tokens.

Frozen and free of tensors, so that it can be logged, replayed and tested.
"""

from __future__ import annotations

from dataclasses import dataclass

from hasten.core.request import RequestId


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """Tokens [start, start + num_tokens) of one request; the last `num_drafts` are drafts.

    `num_logit_rows` of the last rows want logits: drafts + 1 where the step reaches the end of
    what is accepted, 0 for a chunk in the middle of a prompt.
    """

    request_id: RequestId
    start: int
    num_tokens: int
    num_drafts: int
    num_logit_rows: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block of one KV group before the step computes anything."""

    group_id: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `preempted` requests gave their blocks back while it was planned."""

    step_idx: int
    requests: tuple[PlannedRequest, ...]
    block_copies: tuple[BlockCopy, ...]
    preempted: tuple[RequestId, ...]

    @property
    def num_tokens(self) -> int:
        return sum(planned.num_tokens for planned in self.requests)
