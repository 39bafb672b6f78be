"""`ops.Route` and `ops.CombineExperts`: which experts a token goes to, and their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from hasten.kernels import ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Binder, Kernel
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.experts import combine_kernel, route_kernel


def supports(
    op: ops.Route | ops.CombineExperts, _weights: Mapping[WeightName, Weight]
) -> str | None:
    if isinstance(op, ops.Route) and op.logits.width > 1024:
        return f"{op.logits.width} experts, more than 1024"
    return None


def bind(op: ops.Route | ops.CombineExperts, binder: Binder) -> Kernel:
    return _bind_route(op, binder) if isinstance(op, ops.Route) else _bind_combine(op, binder)


def _bind_route(op: ops.Route, binder: Binder) -> Kernel:
    logits, out = binder.activation(op.logits), binder.activation(op.out)
    block = triton.next_power_of_2(op.logits.width)
    rows = binder.rows_per_program(block)

    def route() -> None:
        binder.launch(
            route_kernel,
            (-(-out.num_rows // rows),),
            logits.data,
            out.data,
            out.num_rows,
            num_warps=4,
            NUM_EXPERTS=op.logits.width,
            NUM_ACTIVE=op.num_active,
            RENORMALIZE=op.renormalize,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )

    return route


def _bind_combine(op: ops.CombineExperts, binder: Binder) -> Kernel:
    x, routing, out = (binder.activation(buffer) for buffer in (op.x, op.routing, op.out))
    block = min(triton.next_power_of_2(op.out.width), 1024)
    rows = binder.rows_per_program(block)

    def combine() -> None:
        binder.launch(
            combine_kernel,
            (-(-out.num_rows // rows), -(-op.out.width // block)),
            x.data,
            routing.data,
            out.data,
            out.num_rows,
            num_warps=4,
            WIDTH=op.out.width,
            NUM_ACTIVE=op.routing.width // 2,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )

    return combine
