"""`ops.Input` in torch: the executable has put the rows there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.Input, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(_op: ops.Input, _binder: Binder) -> Kernel:
    def nothing_to_do() -> None:
        return

    return nothing_to_do
