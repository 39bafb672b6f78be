"""The scheduler's decision for one step: who computes how many tokens.

Frozen and free of tensors, so that it can be logged, replayed, sent to another process and tested.
msgspec structs: one is made per running request and step, and they are ten times cheaper to make
than frozen dataclasses.
"""

from __future__ import annotations

import msgspec
from hasten.core.request import RequestId


class PlannedRequest(msgspec.Struct, frozen=True, gc=False):
    """Tokens [start, start + num_tokens) of one request; the last `num_drafts` are drafts.

    `num_logit_rows` of the last rows want logits: drafts + 1 where the step reaches the end of
    what is accepted, 0 for a chunk in the middle of a prompt. Where the prompt is scored
    (`Request.scores_prompt`) all `num_tokens` rows want them; if such a request is preempted
    before its first output, the same positions come again.
    """

    request_id: RequestId
    start: int
    num_tokens: int
    num_drafts: int
    num_logit_rows: int


class BlockCopy(msgspec.Struct, frozen=True, gc=False):
    """Copy one block of one KV group before the step computes anything.

    Within one plan a block is never both source and destination, nor destination twice, so the
    copies may be carried out in any order or at once.
    """

    group_id: int
    source: int
    destination: int


class StepPlan(msgspec.Struct, frozen=True):
    """One step.

    `preempted` requests gave their blocks back while it was planned; `begun` were let in for the
    first time.
    """

    step_idx: int
    requests: tuple[PlannedRequest, ...]
    block_copies: tuple[BlockCopy, ...]
    preempted: tuple[RequestId, ...]
    begun: tuple[RequestId, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(planned.num_tokens for planned in self.requests)
