"""Steps in which the same requests decode one token each, one after another: most steps there are.

Such a step's batch is that of the step before, moved on by one position, in the same arrays. Laying
it out anew takes three times as long, mostly to find in memory what the model has driven out of the
processor's caches. Exercised by `pytest tests/unit/core/test_batch.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.core.batch import BlockTables
    from hasten.core.plan import StepPlan
    from hasten.core.request import Request, RequestId
    from hasten.kernels.step import StepBatch


@dataclass(slots=True)
class SteadyDecode:
    """The batch of the last step: request i decoded at position `positions[i]` out of `slots[i]`.

    Every request has one row, whose logits are wanted, and nothing of it but its token and its
    position changes from step to step. The batch's arrays must be its own.
    """

    batch: StepBatch
    requests: Sequence[Request]
    slots: Sequence[int]
    positions: list[int]

    def move_on(
        self, plan: StepPlan, requests: Mapping[RequestId, Request], blocks: BlockTables
    ) -> bool:
        """Make it the batch of `plan`; False, and nothing is changed, where it cannot be."""
        if plan.block_copies or len(plan.requests) != len(self.requests):
            return False
        tokens: list[int] = []
        entering = []  # rows at the first position of a block
        for p, request, slot, position in zip(
            plan.requests, self.requests, self.slots, self.positions, strict=True
        ):
            if (
                p.start != position + 1
                or p.num_tokens != 1
                or p.num_logit_rows != 1
                or requests.get(p.request_id) is not request
                or blocks.table_row(p.request_id) != slot
            ):
                return False
            if p.start % blocks.block_size == 0:
                entering.append(len(tokens))
            tokens.append(request.token_ids[p.start])
        batch = self.batch
        batch.token_ids[:] = tokens
        batch.positions += 1
        batch.seq_lens += 1
        batch.sampling.positions += 1
        for group, table in zip(batch.groups, blocks.tables, strict=True):
            np.add(group.slot_mapping, 1, out=group.slot_mapping)
            for row in entering:
                block = table[self.slots[row], plan.requests[row].start // blocks.block_size]
                group.slot_mapping[row] = block * blocks.block_size
        self.positions = [position + 1 for position in self.positions]
        return True
