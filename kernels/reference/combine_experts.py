"""`ops.CombineExperts` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.CombineExperts, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.CombineExperts, binder: Binder) -> Kernel:
    x, routing, out = (binder.activation(buffer) for buffer in (op.x, op.routing, op.out))
    num_active = op.routing.width // 2

    def combine_experts() -> None:
        weights = routing.rows[:, num_active:].float()
        total = out.rows.new_zeros(out.rows.shape, dtype=weights.dtype)
        for rank, outputs in enumerate(x.rows.chunk(num_active, dim=-1)):
            total.addcmul_(weights[:, rank : rank + 1], outputs.float())
        out.rows.copy_(total)

    return combine_experts
