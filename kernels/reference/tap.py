"""`ops.Tap` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.Tap, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.Tap, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)

    def tap() -> None:
        out.rows.copy_(x.rows)

    return tap
