"""`ops.AddScaled` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.AddScaled, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.AddScaled, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)

    def add_scaled() -> None:
        out.rows.copy_(out.rows.float().add_(x.rows.float(), alpha=op.scale))

    return add_scaled
