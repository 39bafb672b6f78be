"""Which norms and activations quantise their output themselves, for the fp8 product behind them.

A product with e4m3 inputs begins by reading its inputs again to quantise them (`quantize_rows`).
Where the op just before it makes those inputs, a row at a time, it writes the codes and scales too,
by the same arithmetic on the same rounded numbers: one launch and one read less, and the same bits.
The program stays as it was recorded; this is found when it is bound. Exercised by
`pytest tests/cpu/triton/test_fusion.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hasten.kernels import ops
from hasten.kernels.triton.matrices import FP8, kind_of, parts_of
from hasten.kernels.weights import ActivationScheme, Fp8Weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hasten.kernels.program import WeightName
    from hasten.kernels.weights import Weight

Producer = ops.RmsNorm | ops.ActMul
MAX_WIDTH = 16384
"""The longest row whose numbers and codes one program holds in registers."""


def quantizing_pairs(
    recorded: Sequence[ops.Op], weights: Mapping[WeightName, Weight], *, has_fp8: bool
) -> list[tuple[Producer, ops.Linear]]:
    """Each producer that quantises, and the product for which it does."""
    return [
        (op, reader)
        for op, reader in pairwise(recorded)
        if isinstance(op, Producer)
        and isinstance(reader, ops.Linear)
        and reader.x == op.out
        and reader.x.width <= MAX_WIDTH
        and _quantizes(weights[reader.weight], has_fp8=has_fp8)
    ]


def _quantizes(weight: Weight, *, has_fp8: bool) -> bool:
    """Whether a weight is one matrix that wants e4m3 inputs with scales of their own."""
    if len(parts_of(weight)) > 1 or not isinstance(weight, Fp8Weight):
        return False
    is_dynamic = weight.activations is not ActivationScheme.STATIC
    return is_dynamic and kind_of(weight, has_fp8=has_fp8) == FP8
