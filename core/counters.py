"""What an engine has counted since it started, and the snapshot of it for metrics.

Pure: whoever counts reads the clock. Exercised by `pytest tests/unit/core/test_engine.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from hasten.core.draft_counters import DraftCounters
from hasten.core.messages import Stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.parts import EngineParts


@dataclass(slots=True)
class StepTimings:
    """Nanoseconds spent in each part of all steps so far."""

    num_steps: int = 0
    schedule_ns: int = 0
    prepare_ns: int = 0
    model_ns: int = 0
    output_ns: int = 0
    update_ns: int = 0
    propose_ns: int = 0

    def add(self, marks: Sequence[int]) -> None:
        """Count one step; `marks` are the clock before each part, in order, and after the last."""
        begin, planned, prepared, computed, reported, updated, end = marks
        self.num_steps += 1
        self.schedule_ns += planned - begin
        self.prepare_ns += prepared - planned
        self.model_ns += computed - prepared
        self.output_ns += reported - computed
        self.update_ns += updated - reported
        self.propose_ns += end - updated

    def seconds(self) -> dict[str, float]:
        """By part; where a part's name ends in "_ns" here, it does not there."""
        parts = (part.name for part in fields(self) if part.name.endswith("_ns"))
        return {name.removesuffix("_ns"): getattr(self, name) * 1e-9 for name in parts}

    def reset(self) -> None:
        for part in fields(self):
            setattr(self, part.name, 0)


@dataclass(slots=True)
class EngineCounters:
    """Counts of steps and tokens; `step_s` in the executor, for which `predicted_step_s` were
    expected.
    """

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    step_s: float = 0.0
    predicted_step_s: float = 0.0
    drafts: DraftCounters = field(default_factory=DraftCounters)
    timings: StepTimings = field(default_factory=StepTimings)

    def stats(self, parts: EngineParts) -> Stats:
        """A snapshot of these, and of what the parts count themselves."""
        scheduler, blocks = parts.scheduler, parts.blocks
        speculator, overload = parts.speculator, parts.overload
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_free_blocks=list(blocks.num_free_blocks),
            num_total_blocks=list(blocks.num_usable_blocks),
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens,
            num_cached_prompt_tokens=self.num_cached_prompt_tokens,
            num_recomputed_tokens=scheduler.num_recomputed_tokens,
            num_steps=self.num_steps,
            num_draft_tokens=self.drafts.num_drafted,
            num_accepted_draft_tokens=self.drafts.num_accepted,
            draft_depths=list(self.drafts.depths),
            accepted_drafts=list(self.drafts.accepted),
            speculation_gain=1.0 if speculator is None else speculator.gain,
            predicted_wait_s=overload.predicted_wait_s() if overload is not None else 0.0,
            step_seconds=self.step_s,
            predicted_step_seconds=self.predicted_step_s,
            phase_seconds=self.timings.seconds(),
        )
