"""`ops.Route` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.Route, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.Route, binder: Binder) -> Kernel:
    logits, out = binder.activation(op.logits), binder.activation(op.out)

    def route() -> None:
        # Sorted, because topk chooses freely among equals.
        ranked, ids = logits.rows.float().sort(dim=-1, descending=True, stable=True)
        likely = (ranked - ranked[:, :1]).exp_()
        weights = likely[:, : op.num_active]
        total = (weights if op.renormalize else likely).sum(-1, keepdim=True)
        out.rows.copy_(torch.cat((ids[:, : op.num_active], weights / total), dim=-1))

    return route
