"""Where two live models part: what each layer adds to the residual stream, compared in order.

Exercised by `pytest tests/unit/evals/test_layers.py tests/evals/test_logits.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
from hasten.evals.target import CannotMeasureError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.evals.pair import Pair

JUMP = 3.0
"""A layer is where two models part if its difference is this multiple of all before it."""
NOTABLE = 0.02
"""Relative differences below this are rounding."""


class LayerDifference(msgspec.Struct, frozen=True):
    """`difference`: the norm of the difference over the norm of the baseline's output."""

    name: str
    difference: float


def compare_layers(pair: Pair, token_ids: tuple[int, ...]) -> list[LayerDifference]:
    """Every layer that both sides have, in order; empty where a side does not show its layers."""
    try:
        base, cand = (target.layer_outputs(token_ids) for target in pair.both)
    except CannotMeasureError:
        return []
    return [
        LayerDifference(name, float(np.linalg.norm(rows - cand[name]) / np.linalg.norm(rows)))
        for name, rows in base.items()
        if name in cand and cand[name].shape == rows.shape
    ]


def parting(layers: Sequence[LayerDifference]) -> LayerDifference | None:
    """The layer at which the two sides part, if there is one: damage before it would show."""
    before = NOTABLE / JUMP
    for layer in layers:
        if layer.difference >= JUMP * before:
            return layer
        before = max(before, layer.difference)
    return None
