"""`ForeignBody` and `ForeignHead` in torch.

Rows are padded to a multiple of `PADDED_ROWS`, as near as plain torch products come to treating a
row alike among any number of rows (see `linear`); what the padding computes is thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody gives it)
from hasten.kernels import foreign
from hasten.kernels.reference import paged_attention, rope_store_kv
from hasten.kernels.reference.linear import PADDED_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hasten.kernels.ops import Op
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(_op: Op, _weights: Mapping[WeightName, Weight]) -> str | None:
    return None


def bind(op: Op, binder: Binder) -> Kernel:
    if isinstance(op, foreign.ForeignBody):
        return _bind_body(op, binder)
    assert isinstance(op, foreign.ForeignHead)
    return _bind_head(op, binder)


def _bind_body(op: foreign.ForeignBody, binder: Binder) -> Kernel:
    out = binder.activation(op.out)
    layers = [_bind_attention(layer, binder) for layer in op.layers]
    token_ids = binder.token_ids()
    positions = binder.per_step("positions", lambda batch: binder.index(batch.positions))

    def body() -> None:
        remaining = iter(layers)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return next(remaining)(q, k, v)

        hidden = op.module.body(_padded(token_ids.value), _padded(positions.value), attend)
        out.rows.copy_(hidden[: len(out.rows)])

    return body


def _bind_attention(layer: foreign.ForeignAttention, binder: Binder) -> foreign.Attend:
    qkv = binder.activation(layer.attention.qkv)
    out = binder.activation(layer.attention.out)
    store: Callable[[], None] = rope_store_kv.bind(layer.store, binder)
    attention: Callable[[], None] = paged_attention.bind(layer.attention, binder)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        num_tokens = len(qkv.rows)
        qkv.rows.copy_(torch.cat([part[:num_tokens].flatten(1) for part in (q, k, v)], dim=-1))
        store()
        attention()
        return _padded(out.rows).view(q.shape)

    return attend


def _bind_head(op: foreign.ForeignHead, binder: Binder) -> Kernel:
    x, logits = binder.activation(op.x), binder.activation(op.logits)

    def head() -> None:
        logits.rows.copy_(op.module.head(_padded(x.rows))[: len(x.rows)])

    return head


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """With zeros (token 0, position 0) up to a multiple of `PADDED_ROWS`."""
    return F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, -len(rows) % PADDED_ROWS))
