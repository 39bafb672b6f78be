"""`ops.GatherRows` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.GatherRows, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.GatherRows, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)
    logit_rows = binder.per_step("logit_rows", lambda batch: binder.index(batch.logit_rows))
    wanted = binder.logit_slice

    def gather() -> None:
        rows = logit_rows.value[wanted.start : wanted.stop]
        out.rows.copy_(torch.index_select(x.rows, 0, rows))

    return gather
