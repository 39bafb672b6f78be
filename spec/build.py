"""From options to a speculator: the factory to hand to `core.build.build_engine`.

Exercised by `pytest tests/cpu/spec/test_build.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.spec.depth import DepthController, StepLimits
from hasten.spec.drafter import DrafterProposer
from hasten.spec.ngram import NgramProposer
from hasten.spec.speculator import Speculator
from hasten.spec.suffix import SuffixProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.core.blocks import BlockManager
    from hasten.core.drafter import Drafter
    from hasten.core.latency import StepTimeModel
    from hasten.core.options import EngineOptions
    from hasten.spec.proposer import Proposer

PROPOSERS: dict[str, Callable[[], Proposer]] = {"ngram": NgramProposer, "suffix": SuffixProposer}
"""Those that need no model."""
PASS_SHARE = 0.5
"""How long a drafter may catch up between two steps, as a share of what a step may take."""


def make_speculator(
    options: EngineOptions,
    step_times: StepTimeModel,
    drafters: Sequence[Drafter] = (),
    blocks: BlockManager | None = None,
) -> Speculator | None:
    """The speculator that `options` ask for; None for `--spec-method off`.

    `blocks` are those of the engine, which `drafters` write into.
    """
    speculation, scheduling = options.speculation, options.scheduler
    if not speculation.methods:
        return None
    target_ms = scheduling.target_itl_ms
    limits = StepLimits(
        max_rows=scheduling.max_num_batched_tokens,
        target_s=None if target_ms is None else target_ms / 1000,
        min_chunk=options.cache.block_size,
    )
    return Speculator(
        {name: PROPOSERS[name]() for name in speculation.methods if name in PROPOSERS},
        DepthController(step_times, limits),
        speculation.spec_max_depth,
        speculation.fixed_depth,
        _drafting(drafters, blocks, PASS_SHARE * scheduling.step_limit_s),
    )


def _drafting(
    drafters: Sequence[Drafter], blocks: BlockManager | None, max_pass_s: float
) -> dict[str, DrafterProposer]:
    if not drafters:
        return {}
    assert blocks is not None, "drafters write into blocks"
    return {
        drafter.model.name: DrafterProposer(drafter, blocks, max_pass_s) for drafter in drafters
    }
