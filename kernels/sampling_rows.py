"""Sampling records that ask for nothing, for whoever makes batches of its own.

Exercised by `pytest tests/cpu/kernels/test_reference.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hasten.kernels.step import SamplingRows

if TYPE_CHECKING:
    from hasten.kernels.step import F32, I32


def greedy_rows(
    num_rows: int, num_logprobs: int = -1, positions: I32 | None = None
) -> SamplingRows:
    """The argmax of every row; `num_logprobs` and `positions` as in `SamplingRows`.

    No two columns share an array: callers change one.
    """

    def floats(value: float) -> F32:
        return np.full(num_rows, value, np.float32)

    def ints(value: int) -> I32:
        return np.full(num_rows, value, np.int32)

    return SamplingRows(
        temperature=floats(0),
        top_k=ints(0),
        top_p=floats(1),
        min_p=floats(0),
        repetition_penalty=floats(1),
        frequency_penalty=floats(0),
        presence_penalty=floats(0),
        seeds=np.zeros(num_rows, np.uint64),
        positions=ints(0) if positions is None else positions,
        sample_idx=ints(0),
        num_logprobs=ints(num_logprobs),
        target_ids=ints(-1),
    )
