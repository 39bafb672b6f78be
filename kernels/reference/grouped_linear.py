"""`ops.GroupedLinear` in torch: expert by expert, over the tokens that chose it.

A product has at least `MIN_ROWS` rows, as those of `linear`, so that a token's result does not
depend on how many others chose the same expert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody gives it)
from hasten.kernels.reference.binding import MIN_ROWS
from hasten.kernels.reference.linear import make_products

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight


def supports(op: ops.GroupedLinear, weights: Mapping[WeightName, Weight]) -> str | None:
    num_rows = op.num_experts * op.num_parts * op.part_width
    if weights[op.weight].shape[0] != num_rows:
        return f"weight {op.weight} has {weights[op.weight].shape[0]} rows, not {num_rows}"
    return None


def bind(op: ops.GroupedLinear, binder: Binder) -> Kernel:
    x, routing, out = (binder.activation(buffer) for buffer in (op.x, op.routing, op.out))
    dtype = torch.promote_types(x.data.dtype, out.data.dtype)
    weight = binder.weight(op.weight)
    rows_per_expert = op.num_parts * op.part_width
    experts = [
        make_products(
            weight.take_rows(slice(start, start + rows_per_expert)), None, dtype, binder.device
        )
        for start in range(0, op.num_experts * rows_per_expert, rows_per_expert)
    ]
    width = weight.shape[1]
    is_shared = op.x.width == width

    def grouped_linear() -> None:
        inputs = x.rows.to(dtype).view(len(x.rows), -1, width)
        outputs = out.rows.view(-1, op.num_parts, op.num_active, op.part_width)
        ids = routing.rows[:, : op.num_active]
        for expert_id in sorted({int(idx) for idx in ids.flatten().tolist()}):
            tokens, ranks = (ids == expert_id).nonzero(as_tuple=True)
            chosen = inputs[tokens, 0 if is_shared else ranks]
            padded = F.pad(chosen, (0, 0, 0, max(0, MIN_ROWS - len(chosen))))
            products = [product(padded)[: len(chosen)] for product, _ in experts[expert_id]]
            result = torch.cat(products, dim=-1).to(outputs.dtype)
            outputs[tokens, :, ranks] = result.view(-1, op.num_parts, op.part_width)

    return grouped_linear
