"""`ops.Embed` in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: ops.Embed, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: ops.Embed, binder: Binder) -> Kernel:
    out = binder.activation(op.out)
    table = binder.tensor(op.table, out.data.dtype)
    token_ids = binder.token_ids()

    def embed() -> None:
        torch.index_select(table, 0, token_ids.value, out=out.rows)

    def embed_scaled() -> None:
        embed()
        out.rows.mul_(op.scale)

    return embed if op.scale == 1.0 else embed_scaled
