"""`ops.Linear`: one kernel for all kinds of weights and all numbers of rows (see `products`).

    SPREAD   each program sums one segment into scratch; the last one of a tile to finish adds them
             in order. For few rows, when tiles alone would leave the device idle.
    else     each program sums all segments of its tile, one after the other.

Both give a row the same bits. Exercised by `pytest tests/cpu/triton/test_conformance.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hasten.kernels.dtypes import DType
from hasten.kernels.triton.matrices import DENSE, FP8, kind_of, parts_of, to_matrix
from hasten.kernels.triton.products import UNIT, segments
from hasten.kernels.triton.quantize_rows import Quantizer, bind_quantizer
from hasten.kernels.weights import ActivationScheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.triton.binding import Activation, Binder, Kernel
    from hasten.kernels.triton.matrices import DeviceMatrix
    from hasten.kernels.weights import Matrix, Weight
from hasten.kernels.triton.device.linear import linear_kernel

MAX_NUMBERS = 2**31 - 1
"""Of a weight: kernels count them in 32 bits."""
MAX_SPREAD_ROWS = 128
"""Most rows whose segments are spread over programs: bounds the scratch memory."""


def supports(op: ops.Linear, weights: Mapping[WeightName, Weight]) -> str | None:
    weight = weights[op.weight]
    if weight.shape[0] * weight.shape[1] > MAX_NUMBERS:
        return f"weight {op.weight} has more than {MAX_NUMBERS} numbers"
    if weight.shape != (op.out.width, op.x.width):
        return f"weight {op.weight} is {weight.shape}, not {(op.out.width, op.x.width)}"
    if op.x.dtype is not DType.BF16:
        return f"inputs of {op.x.dtype}; products take bfloat16"
    return None


def describe(op: ops.Linear, weights: Mapping[WeightName, Weight], *, has_fp8: bool) -> str:
    """What the products of an op multiply."""
    return " | ".join(describe_part(part, has_fp8=has_fp8) for part in parts_of(weights[op.weight]))


def describe_part(weight: Matrix, *, has_fp8: bool) -> str:
    kind = kind_of(weight, has_fp8=has_fp8)
    if kind == DENSE:
        return "bf16 x bf16"
    return "e4m3 x e4m3" if kind == FP8 else "unpacked to bf16 x bf16"


def bind(op: ops.Linear, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)
    bias = None if op.bias is None else binder.vector(op.bias)
    calls: list[Kernel] = []
    start = 0
    for matrix in bind_matrices(op.weight, binder):
        columns = slice(start, start + matrix.shape[0])
        part_bias = None if bias is None else bias[columns]
        quantize = bind_quantizer(matrix, x, binder, is_done=binder.is_quantized_for(op))
        calls.append(_Product(matrix, x, quantize, out, columns, part_bias, binder))
        start = columns.stop
    if len(calls) == 1:
        return calls[0]

    def stacked() -> None:
        for call in calls:
            call()

    return stacked


def bind_matrices(name: WeightName, binder: Binder) -> tuple[DeviceMatrix, ...]:
    """A weight's matrices on the device, shared by the ops that read it."""
    matrices: tuple[DeviceMatrix, ...] = binder.once(
        ("matrices", name),
        lambda: tuple(
            to_matrix(part, binder.device, has_fp8=binder.has_fp8)
            for part in parts_of(binder.weights[name])
        ),
    )
    return matrices


def constants_of(matrix: DeviceMatrix) -> dict[str, Any]:
    """What sums are compiled for, of all that a matrix decides: no width (see `products`)."""
    return {
        "KIND": matrix.kind,
        "CODES": matrix.codes,
        "IS_EVEN": matrix.shape[1] % UNIT == 0,
        "GROUP_SIZE": matrix.group_size,
        "HAS_OFFSET": matrix.has_offset,
        "INPUT_BY_GROUP": matrix.activations is ActivationScheme.TOKEN_GROUP,
    }


class _Product:
    """One matrix times the step's rows, into some columns of a buffer."""

    def __init__(
        self,
        matrix: DeviceMatrix,
        x: Activation,
        quantize: Quantizer,
        out: Activation,
        columns: slice,
        bias: torch.Tensor | None,
        binder: Binder,
    ) -> None:
        self._binder = binder
        self._matrix = matrix
        self._x = x
        self._result = out.data[:, columns]
        self._bias = matrix.data if bias is None else bias
        self._quantize = quantize
        self._num_segments, self._segment_units = segments(*matrix.shape)
        self._constants = constants_of(matrix) | {"HAS_BIAS": bias is not None}
        if self._num_segments > 1:
            most_rows = min(MAX_SPREAD_ROWS, out.data.shape[0])
            num_partial = self._num_segments * most_rows * matrix.shape[0]
            binder.scratch("partial", num_partial, torch.float32)
        binder.scratch("partial", 1, torch.float32)
        binder.scratch("arrived", 2 * -(-matrix.shape[0] // 32), torch.int32)

    def __call__(self) -> None:
        binder, matrix, num_rows = self._binder, self._matrix, self._x.num_rows
        config = binder.table.product(matrix.launch_kind, num_rows)
        x, x_scale = self._quantize()
        spread = self._num_segments > 1 and num_rows <= MAX_SPREAD_ROWS
        grid = (
            -(-num_rows // config.block_rows),
            -(-matrix.shape[0] // config.block_out),
            self._num_segments if spread else 1,
        )
        binder.launch(
            linear_kernel,
            grid,
            x,
            x_scale,
            matrix.data,
            matrix.scale,
            matrix.offset,
            self._bias,
            self._result,
            binder.get_scratch("partial"),
            binder.get_scratch("arrived"),
            num_rows,
            matrix.shape[1],
            matrix.shape[0],
            self._result.stride(0),
            self._segment_units,
            self._num_segments,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            SPREAD=spread,
            BLOCK_ROWS=config.block_rows,
            BLOCK_OUT=config.block_out,
            BLOCK_IN=config.block_in,
            **self._constants,
        )
