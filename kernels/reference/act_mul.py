"""`ops.ActMul` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody gives it)
from hasten.kernels.ops import Activation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.ActMul, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.ActMul, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)
    activate = _ACTIVATIONS[op.activation]

    def act_mul() -> None:
        gate, up = x.rows.float().chunk(2, dim=-1)
        out.rows.copy_(activate(gate).mul_(up))

    return act_mul


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: F.silu,
    Activation.GELU_TANH: _gelu_tanh,
}
