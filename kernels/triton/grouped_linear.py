"""`ops.GroupedLinear`: each expert's weights times the rows that chose it.

First every expert lists its (token, rank) pairs in their order, without atomics; then a program per
expert, part and tile of outputs walks the list. Sums are those of `products`, so what a token gets
does not depend on who else chose the expert. Exercised by `pytest tests/cpu/triton`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from hasten.kernels.dtypes import DType
from hasten.kernels.triton.binding import Activation
from hasten.kernels.triton.linear import MAX_NUMBERS, bind_matrices, constants_of, describe_part
from hasten.kernels.triton.matrices import parts_of
from hasten.kernels.triton.products import segments
from hasten.kernels.triton.quantize_rows import bind_quantizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Binder, Kernel
    from hasten.kernels.triton.matrices import DeviceMatrix
    from hasten.kernels.weights import Weight
from hasten.kernels.triton.device.grouped_linear import grouped_linear_kernel, list_pairs_kernel

LIST_BLOCK = 1024
MAX_TILE_ROWS = 64
"""The addresses of listed rows take registers that the tiles of many rows do not leave."""


def supports(op: ops.GroupedLinear, weights: Mapping[WeightName, Weight]) -> str | None:
    weight = weights[op.weight]
    rows_per_expert = op.num_parts * op.part_width
    num_rows = op.num_experts * rows_per_expert
    if weight.shape[0] != num_rows:
        return f"weight {op.weight} has {weight.shape[0]} rows, not {num_rows}"
    if num_rows * weight.shape[1] > MAX_NUMBERS:
        return f"weight {op.weight} has more than {MAX_NUMBERS} numbers"
    if op.x.dtype is not DType.BF16:
        return f"inputs of {op.x.dtype}; products take bfloat16"
    if any(part.shape[0] % rows_per_expert for part in parts_of(weight)):
        return f"weight {op.weight} changes its scheme inside an expert"
    return None


def describe(op: ops.GroupedLinear, weights: Mapping[WeightName, Weight], *, has_fp8: bool) -> str:
    return " | ".join(describe_part(part, has_fp8=has_fp8) for part in parts_of(weights[op.weight]))


def bind(op: ops.GroupedLinear, binder: Binder) -> Kernel:
    matrices = bind_matrices(op.weight, binder)
    rows_per_expert = op.num_parts * op.part_width
    num_experts = [matrix.shape[0] // rows_per_expert for matrix in matrices]
    products = [
        _Experts(op, matrix, first, binder)
        for matrix, first in zip(matrices, accumulate(num_experts, initial=0), strict=False)
    ]
    routing = binder.activation(op.routing)
    capacity = len(routing.data)
    binder.scratch("pairs", op.num_experts * capacity, torch.int32)
    binder.scratch("pair_counts", op.num_experts, torch.int32)

    def grouped_linear() -> None:
        binder.launch(
            list_pairs_kernel,
            (op.num_experts,),
            routing.data,
            binder.get_scratch("pairs"),
            binder.get_scratch("pair_counts"),
            routing.num_rows * op.num_active,
            capacity,
            num_warps=4,
            NUM_ACTIVE=op.num_active,
            BLOCK=LIST_BLOCK,
        )
        for product in products:
            product()

    return grouped_linear


class _Experts:
    """The experts of one matrix."""

    def __init__(
        self, op: ops.GroupedLinear, matrix: DeviceMatrix, first_expert: int, binder: Binder
    ) -> None:
        self._op = op
        self._binder = binder
        self._matrix = matrix
        self._x = binder.activation(op.x)
        self._out = binder.activation(op.out)
        width = matrix.shape[1]
        self._rows_per_token = op.x.width // width
        self._inputs = Activation(self._x.data.view(-1, width))
        self._quantize = bind_quantizer(matrix, self._inputs, binder)
        self._first_expert = first_expert
        self._num_segments, self._segment_units = segments(op.num_parts * op.part_width, width)
        self._constants = constants_of(matrix) | {
            "NUM_ACTIVE": op.num_active,
            "IS_SHARED": self._rows_per_token == 1,
        }

    def __call__(self) -> None:
        op, binder, matrix = self._op, self._binder, self._matrix
        self._inputs.num_rows = self._x.num_rows * self._rows_per_token
        rows_per_expert = -(-self._x.num_rows * op.num_active // op.num_experts)
        config = binder.table.product(matrix.launch_kind, min(rows_per_expert, MAX_TILE_ROWS))
        x, x_scale = self._quantize()
        binder.launch(
            grouped_linear_kernel,
            (
                -(-op.part_width // config.block_out),
                op.num_parts,
                matrix.shape[0] // (op.num_parts * op.part_width),
            ),
            x,
            x_scale,
            matrix.data,
            matrix.scale,
            matrix.offset,
            binder.get_scratch("pairs"),
            binder.get_scratch("pair_counts"),
            self._out.data,
            self._first_expert,
            len(self._x.data),
            op.part_width,
            matrix.shape[1],
            matrix.shape[0],
            op.out.width,
            self._segment_units,
            self._num_segments,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            BLOCK_ROWS=config.block_rows,
            BLOCK_OUT=config.block_out,
            BLOCK_IN=config.block_in,
            **self._constants,
        )
