"""`ops.ActMul` in torch.

Written with `exp` and `tanh`, since torch's own `silu`, `sigmoid` and `gelu` compute the last few
elements of each thread's share with other code, and so other bits, than the rest: a row's result
would depend on how many rows there are (measured, torch 2.13).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hasten.kernels.ops import Activation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
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


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x / x.neg().exp_().add_(1.0)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = x.pow(3).mul_(0.044715).add_(x).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1.0).mul_(x).mul_(0.5)


_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: _silu,
    Activation.GELU_TANH: _gelu_tanh,
}
