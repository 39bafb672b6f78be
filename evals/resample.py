"""How firm a verdict is: the same gate over resampled observations of one record.

Each trial draws, with replacement, as many texts, answers and items as a block saw, and judges
them. A benign pair whose trials fail more often than the gate's level says has limits that are too
tight, or too few samples. Exercised by `pytest tests/unit/evals/test_resample.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from hasten.evals.blocks.serving import ServingResult
from hasten.evals.gate import Verdict, overall
from hasten.evals.run import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.evals.blocks import BlockResult
    from hasten.evals.record import Measured, Record

KEPT_WHOLE = ("layers",)
"""What a result holds beside samples."""


def resampled_verdicts(record: Record, num_trials: int, seed: int = 1) -> Counter[Verdict]:
    """How often each verdict comes out of `num_trials` trials."""
    return Counter(_trials(record, num_trials, np.random.default_rng(seed)))


def _trials(record: Record, num_trials: int, rng: np.random.Generator) -> Iterator[Verdict]:
    for _ in range(num_trials):
        blocks = [_resampled(block, rng) for block in record.blocks]
        yield overall(judge(record.suite, blocks))


def _resampled(block: Measured, rng: np.random.Generator) -> Measured:
    """Rounds of serving stay as they are: they belong to loads, and are few."""
    if block.result is None or isinstance(block.result, ServingResult):
        return block
    return msgspec.structs.replace(block, result=_draw(block.result, rng))


def _draw(result: BlockResult, rng: np.random.Generator) -> BlockResult:
    """Lists of the same length speak of the same samples, so they are drawn together."""
    chosen: dict[int, list[int]] = {}
    drawn: dict[str, Any] = {}
    for name in result.__struct_fields__:
        samples = getattr(result, name)
        if name in KEPT_WHOLE or not isinstance(samples, list):
            continue
        indices = chosen.setdefault(
            len(samples), rng.integers(len(samples), size=len(samples)).tolist()
        )
        drawn[name] = [samples[i] for i in indices]
    return msgspec.structs.replace(result, **drawn)
