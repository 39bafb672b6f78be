"""Inputs of fp8 products, rounded to e4m3: per token, per token and group of 128, or static.

Not an op of its own: `linear` and `grouped_linear` call it where the weight asks for it
(`ops.Linear` says which arithmetic). Exercised by `pytest tests/cpu/triton/test_linear.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from hasten.kernels.triton.matrices import FP8
from hasten.kernels.weights import FP8_GROUP, ActivationScheme

if TYPE_CHECKING:
    from collections.abc import Callable

    from hasten.kernels.triton.binding import Activation, Binder
    from hasten.kernels.triton.matrices import DeviceMatrix
from hasten.kernels.triton.device.quantize_rows import quantize_rows_kernel

MAX_BLOCK = 4096


def bind_quantizer(
    matrix: DeviceMatrix, x: Activation, binder: Binder
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A function that gives the inputs as the matrix wants them, and their scales.

    Both lie in scratch memory, valid until the next product.
    """
    if matrix.kind != FP8:
        return lambda: (x.data, x.data)
    num_rows, width = x.data.shape
    by_group = matrix.activations is ActivationScheme.TOKEN_GROUP
    group_size = FP8_GROUP if by_group else width
    num_groups = -(-width // group_size)
    binder.scratch("codes", num_rows * width, torch.float8_e4m3fn)
    binder.scratch("code_scales", num_rows * num_groups, torch.float32)
    block = min(triton.next_power_of_2(group_size), MAX_BLOCK)
    rows = binder.rows_per_program(block)

    def quantize() -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales = binder.get_scratch("codes"), binder.get_scratch("code_scales")
        binder.launch(
            quantize_rows_kernel,
            (-(-x.num_rows // rows), num_groups),
            x.data,
            codes,
            scales,
            matrix.input_scale,
            x.num_rows,
            num_warps=1 if by_group else 8,
            WIDTH=width,
            GROUP_SIZE=group_size,
            NUM_GROUPS=num_groups,
            IS_STATIC=matrix.activations is ActivationScheme.STATIC,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )
        return codes, scales

    return quantize
