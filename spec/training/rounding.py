"""Weights as the head will be served with: a head that learns with them loses nothing to rounding.

In the forward and backward passes the matrices are int4 in groups of 32; the gradients that come
of that change the exact ones ("straight-through", Bengio et al., 2013). Exercised by
`pytest tests/cpu/spec/test_training.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from hasten.core.loading.eagle import served_matrix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

NUM_BITS = 4


def round_matrix(exact: torch.Tensor) -> torch.Tensor:
    """[rows, columns] as the kernels will read it."""
    return torch.from_numpy(served_matrix(exact.numpy(), NUM_BITS).dequantize())


def _as_served(trained: torch.Tensor) -> torch.Tensor:
    """It is written in bf16, and rounded from there when it is loaded."""
    return round_matrix(trained.bfloat16().float())


@contextmanager
def rounded_weights(head: nn.Module) -> Iterator[None]:
    """Within, every trained matrix of the head is rounded."""
    matrices = [p for p in head.parameters() if p.requires_grad and p.ndim == 2]
    exact = [matrix.data for matrix in matrices]
    rounded = [_as_served(values) for values in exact]
    for matrix, values in zip(matrices, rounded, strict=True):
        matrix.data = values
    try:
        yield
    finally:
        for matrix, values in zip(matrices, exact, strict=True):
            matrix.data = values
