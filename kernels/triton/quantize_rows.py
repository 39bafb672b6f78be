"""Inputs of fp8 products, rounded to e4m3: per token, per token and group of 128, or static.

Not an op of its own: `linear` and `grouped_linear` call it where the weight asks for it
(`ops.Linear` says which arithmetic), unless the op before them did it (`fusion`). Exercised by
`pytest tests/cpu/triton`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
from hasten.kernels.triton.matrices import FP8
from hasten.kernels.weights import FP8_GROUP, ActivationScheme, Fp8Weight

if TYPE_CHECKING:
    from hasten.kernels.triton.binding import Activation, Binder
    from hasten.kernels.triton.fusion import Producer
    from hasten.kernels.triton.matrices import DeviceMatrix
from hasten.kernels.triton.device.quantize_rows import quantize_rows_kernel

MAX_BLOCK = 4096

Quantizer = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Gives the inputs of a product and their scales."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Where quantised rows go: scratch memory, valid until the next rows are quantised."""

    group_size: int
    num_groups: int
    binder: Binder

    @classmethod
    def of(cls, activations: ActivationScheme, x: Activation, binder: Binder) -> Codes:
        num_rows, width = x.data.shape
        group_size = FP8_GROUP if activations is ActivationScheme.TOKEN_GROUP else width
        num_groups = -(-width // group_size)
        binder.scratch("codes", num_rows * width, torch.float8_e4m3fn)
        binder.scratch("code_scales", num_rows * num_groups, torch.float32)
        return cls(group_size, num_groups, binder)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales; to be asked for when launching."""
        return self.binder.get_scratch("codes"), self.binder.get_scratch("code_scales")


def bind_quantizer(
    matrix: DeviceMatrix, x: Activation, binder: Binder, *, is_done: bool = False
) -> Quantizer:
    """A function that gives the inputs as the matrix wants them, and their scales.

    `is_done`: what made the inputs has quantised them already.
    """
    if matrix.kind != FP8:
        return lambda: (x.data, x.data)
    made = Codes.of(matrix.activations, x, binder)
    if is_done:
        return lambda: made.tensors
    block = min(triton.next_power_of_2(made.group_size), MAX_BLOCK)
    rows = binder.rows_per_program(block)

    def quantize() -> tuple[torch.Tensor, torch.Tensor]:
        codes, scales = made.tensors
        binder.launch(
            quantize_rows_kernel,
            (-(-x.num_rows // rows), made.num_groups),
            x.data,
            codes,
            scales,
            matrix.input_scale,
            x.num_rows,
            num_warps=1 if made.num_groups > 1 else 8,
            WIDTH=x.data.shape[1],
            GROUP_SIZE=made.group_size,
            NUM_GROUPS=made.num_groups,
            IS_STATIC=matrix.activations is ActivationScheme.STATIC,
            BLOCK=block,
            BLOCK_ROWS=rows,
        )
        return codes, scales

    return quantize


def codes_for(op: Producer, out: Activation, binder: Binder) -> Codes | None:
    """Where an op puts its quantised output; None where nobody wants it."""
    reader = binder.reader_to_quantize_for(op)
    if reader is None:
        return None
    weight = binder.weights[reader.weight]
    assert isinstance(weight, Fp8Weight), "fused with another kind of weight"
    return Codes.of(weight.activations, out, binder)
