"""`ops.RmsNorm` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.RmsNorm, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.RmsNorm, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)
    weight = binder.tensor(op.weight, torch.float32)
    if op.residual is None:

        def norm() -> None:
            out.rows.copy_(normalize(x.rows.float(), weight, op.eps))

        return norm

    residual = binder.activation(op.residual)

    def add_and_norm() -> None:
        residual.rows.add_(x.rows)
        out.rows.copy_(normalize(residual.rows.float(), weight, op.eps))

    return add_and_norm


def normalize(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension, x * rsqrt(mean(x^2) + eps) * weight; x is [..., width] fp32."""
    mean_square = x.square().mean(-1, keepdim=True)
    return (x * mean_square.add_(eps).rsqrt_()).mul_(weight)
