"""`ops.Linear` in torch: every weight scheme is dequantised once, at compile time.

A row's bits must not depend on how many rows run with it. What was measured (torch 2.13, CPU;
`tests/cpu/kernels/test_row_invariance.py` repeats it):

- oneDNN's product with a prepacked weight gives a row the same bits among any number of rows,
  wherever it stands, at any number of threads, from 2 rows up in fp32 and from 1 in bf16, but not
  with AMX, which this package's `__init__` keeps it from;
- MKL's (what `F.linear` calls for fp32) does not: few rows per thread take another kernel.

So fewer rows than `MIN_ROWS` are computed together with undefined ones, by oneDNN where it is
(4 rows cost it no more than 1). Elsewhere rows are padded to a multiple of `PADDED_ROWS`, which is
as near as plain torch comes; `hasten check` tells whether it holds on the machine at hand.

A product is computed in the wider of its input's and output's dtype: fp32 logits from bf16 rows
are not rounded to bf16 on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody gives it)
from hasten.kernels.reference.binding import MIN_ROWS, TORCH_DTYPES, Activation, to_tensor
from hasten.kernels.reference.fp8_activations import make_quantizer
from hasten.kernels.weights import Fp8Weight, StackedWeight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels import ops
    from hasten.kernels.program import WeightName
    from hasten.kernels.reference.binding import Binder, Kernel
    from hasten.kernels.weights import Weight

PADDED_ROWS = 16

Product = Callable[[torch.Tensor], torch.Tensor]
"""x [num_rows, in] to x @ W^T + bias [num_rows, out], where num_rows is at least MIN_ROWS."""


def supports(op: ops.Linear, weights: Mapping[WeightName, Weight]) -> str | None:
    weight = weights[op.weight]
    if weight.shape != (op.out.width, op.x.width):
        return f"weight {op.weight} is {weight.shape}, not {(op.out.width, op.x.width)}"
    return None


def bind(op: ops.Linear, binder: Binder) -> Kernel:
    x, out = binder.activation(op.x), binder.activation(op.out)
    dtype = torch.promote_types(x.data.dtype, out.data.dtype)
    bias = None if op.bias is None else binder.tensor(op.bias, dtype)
    products = make_products(binder.weight(op.weight), bias, dtype, binder.device)
    if len(products) == 1:
        return _whole(x, out, products[0][0], dtype)

    def stacked() -> None:
        rows = x.at_least(MIN_ROWS).to(dtype)
        for product, columns in products:
            out.rows[:, columns].copy_(product(rows)[: len(out.rows)])

    return stacked


def make_products(
    weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device
) -> list[tuple[Product, slice]]:
    """The products of a weight's matrices, in order, each with the output columns that it fills."""
    return [
        (_part_product(part, part_bias, dtype, device), columns)
        for part, part_bias, columns in _parts(weight, bias)
    ]


def _part_product(
    weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype, device: torch.device
) -> Product:
    """The product with one matrix; fp8 weights may want their inputs rounded to e4m3 first."""
    quantize = make_quantizer(weight) if isinstance(weight, Fp8Weight) else None
    if quantize is None:
        return make_product(to_tensor(weight, dtype, device), bias)
    exact = make_product(
        to_tensor(weight, torch.float32, device), None if bias is None else bias.float()
    )
    return lambda x: exact(quantize(x))


def _whole(x: Activation, out: Activation, product: Product, dtype: torch.dtype) -> Kernel:
    def linear() -> None:
        rows = x.at_least(MIN_ROWS)
        if rows.dtype != dtype:
            rows = rows.to(dtype)
        out.at_least(MIN_ROWS).copy_(product(rows))

    return linear


def _parts(
    weight: Weight, bias: torch.Tensor | None
) -> list[tuple[Weight, torch.Tensor | None, slice]]:
    """The matrices of a weight, each with its bias and the output columns that it fills."""
    parts: list[tuple[Weight, torch.Tensor | None, slice]] = []
    start = 0
    for part in weight.parts if isinstance(weight, StackedWeight) else (weight,):
        columns = slice(start, start + part.shape[0])
        parts.append((part, None if bias is None else bias[columns], columns))
        start = columns.stop
    return parts


def make_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """The row-invariant product with `weight` [out, in] that this machine has."""
    if _has_onednn(weight.dtype, weight.device):
        return _packed(weight, bias)
    return _padded(weight, bias)


def describe(op: ops.Linear, device: torch.device) -> str:
    """Which product serves an op."""
    dtype = torch.promote_types(TORCH_DTYPES[op.x.dtype], TORCH_DTYPES[op.out.dtype])
    return "torch, oneDNN prepacked" if _has_onednn(dtype, device) else "torch, rows padded"


def _has_onednn(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or bool(_onednn("_is_mkldnn_bf16_supported")())


def _onednn(name: str) -> Callable[..., Any]:
    """An operator that torch's own compiler emits for CPUs; it has no public Python name."""
    operator: Callable[..., Any] = getattr(torch.ops.mkldnn, name)
    return operator


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    packed = _onednn("_reorder_linear_weight")(weight, None)
    pointwise = _onednn("_linear_pointwise")

    def product(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = pointwise(x, packed, bias, "none", [], "")
        return result

    return product


def _padded(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    def product(x: torch.Tensor) -> torch.Tensor:
        missing = -len(x) % PADDED_ROWS
        return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: len(x)]

    return product
