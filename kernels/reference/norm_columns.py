"""`ops.NormColumns` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hasten.kernels.reference.rms_norm import normalize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.NormColumns, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.NormColumns, binder: Binder) -> Kernel:
    x = binder.activation(op.x)
    weight = binder.tensor(op.weight, torch.float32)

    def norm_columns() -> None:
        columns = x.rows[:, op.start : op.stop]
        # A copy, since a row's sum must not depend on how the row lies in memory.
        columns.copy_(normalize(columns.float().contiguous(), weight, op.eps))

    return norm_columns
