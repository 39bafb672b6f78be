"""`ops.ScaleLogits` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.ScaleLogits, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.ScaleLogits, binder: Binder) -> Kernel:
    logits = binder.activation(op.logits)

    def scale_logits() -> None:
        logits.rows.mul_(op.scale)

    def scale_and_cap() -> None:
        scale_logits()
        assert op.softcap is not None
        logits.rows.div_(op.softcap).tanh_().mul_(op.softcap)

    return scale_logits if op.softcap is None else scale_and_cap
