"""The least that a step must do: bytes to read from memory, and multiply-adds.

Counted are the weights of linears, once each; K and V of every token that is attended to; and the
products of both. What stays in the caches or is small beside them is not: activations, rows of the
embedding, norms, sampling. From the last write to the KV cache on, only rows whose logits are
wanted have to be computed.

Pure. Exercised by `pytest tests/unit/core/test_step_work.py` and shown by `hasten bench latency`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hasten.kernels.ops import GroupedLinear, Linear, PagedAttention, RopeStoreKV

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.core.latency import Chunk
    from hasten.kernels.program import KVGroupSpec, Program, WeightName
    from hasten.kernels.weights import Weight


class StepWork(NamedTuple):
    """Bytes read, and multiply-adds."""

    num_bytes: float = 0.0
    multiply_adds: float = 0.0

    def plus(self, other: StepWork) -> StepWork:
        return StepWork(self.num_bytes + other.num_bytes, self.multiply_adds + other.multiply_adds)


class WorkCounter:
    """Counts the work of steps of one program.

    `weight_bytes` says what the kernels read of a linear's weight, `token_bytes` what one token's K
    and V take in one layer of a group.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[WeightName, Weight],
        weight_bytes: Callable[[Linear | GroupedLinear], float],
        token_bytes: Callable[[KVGroupSpec], float],
    ) -> None:
        self._program = program
        self._weights = weights
        self._weight_bytes = weight_bytes
        self._token_bytes = token_bytes
        writers = [i for i, op in enumerate(program.ops) if isinstance(op, RopeStoreKV)]
        self._tail_begin = writers[-1] + 1 if writers else 0

    def count(self, chunks: Sequence[Chunk]) -> StepWork:
        """The work of a step that computes these parts of requests."""
        work = StepWork()
        for index, op in enumerate(self._program.ops):
            parts = [_wanted(chunk) for chunk in chunks] if index >= self._tail_begin else chunks
            num_rows = sum(part.num_tokens for part in parts)
            match op:
                case Linear():
                    work = work.plus(self._linear(op, num_rows))
                case GroupedLinear():
                    work = work.plus(self._experts(op, num_rows))
                case PagedAttention():
                    work = work.plus(self._attention(op, parts))
        return work

    def _linear(self, op: Linear, num_rows: int) -> StepWork:
        if num_rows == 0:
            return StepWork()
        num_outputs, num_inputs = self._weights[op.weight].shape
        return StepWork(self._weight_bytes(op), num_rows * num_outputs * num_inputs)

    def _experts(self, op: GroupedLinear, num_rows: int) -> StepWork:
        """Of the experts, those that at least one token is expected to be routed to."""
        share_read = 1 - (1 - op.num_active / op.num_experts) ** num_rows
        num_outputs, num_inputs = self._weights[op.weight].shape
        active = num_outputs * num_inputs * op.num_active / op.num_experts
        return StepWork(share_read * self._weight_bytes(op), num_rows * active)

    def _attention(self, op: PagedAttention, parts: Sequence[Chunk]) -> StepWork:
        token_bytes = self._token_bytes(self._program.kv_groups[op.kv.group_id])
        num_tokens = num_pairs = 0
        for part in parts:
            end = part.start + part.num_tokens
            most = end if op.window is None else min(end, op.window + part.num_tokens - 1)
            num_tokens += most if part.num_tokens else 0
            num_pairs += sum(
                at + 1 if op.window is None else min(at + 1, op.window)
                for at in range(part.start, end)
            )
        products_per_pair = 2 * op.num_heads * op.head_size
        return StepWork(num_tokens * token_bytes, num_pairs * products_per_pair)


def _wanted(chunk: Chunk) -> Chunk:
    """The rows at the end of a chunk whose logits are wanted."""
    start = chunk.start + chunk.num_tokens - chunk.num_logit_rows
    return chunk._replace(start=start, num_tokens=chunk.num_logit_rows)
