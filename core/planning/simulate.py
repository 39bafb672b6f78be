"""A deployment under a load, by running the real scheduler and blocks with a made-up clock.

No model runs: a step takes as long as the caller's function says, and every request produces
exactly the output it is given. What it shows is bookkeeping: how full the pool gets, what blocks
waste against reserving the longest length for everyone, who is preempted. Pure. Exercised by
`pytest tests/unit/planning` and by hand: `hasten plan embedded --kv-memory 1GiB --simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hasten.core.blocks import BlockManager
from hasten.core.latency import EMPTY_STEP, StepShape
from hasten.core.options import ConfigurationError, SchedulerOptions
from hasten.core.params import GenerationParams
from hasten.core.plan import StepPlan
from hasten.core.policies import queue_policy
from hasten.core.request import FinishReason, Request, RequestId
from hasten.core.scheduler import Scheduler
from hasten.kernels.backend import KVPlan


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """Tokens of prompt and output, and when it arrives."""

    prompt_len: int
    output_len: int
    arrival_s: float = 0.0


@dataclass(slots=True)
class SimulationResult:
    """Outcome of a simulated load; waste is at the step that held the most tokens."""

    num_steps: int = 0
    duration_s: float = 0.0
    num_tokens_out: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_computed_tokens: int = 0
    peak_running: int = 0
    peak_tokens: int = 0
    peak_block_slots: int = 0
    peak_reserved_slots: int = 0

    @property
    def block_waste(self) -> float:
        """Share of the slots of blocks in use that hold no token."""
        return 1 - self.peak_tokens / self.peak_block_slots if self.peak_block_slots else 0.0

    @property
    def reserved_waste(self) -> float:
        """The same, had every request reserved the longest length."""
        return 1 - self.peak_tokens / self.peak_reserved_slots if self.peak_reserved_slots else 0.0


def simulate(
    requests: Sequence[SimulatedRequest],
    kv_plan: KVPlan,
    options: SchedulerOptions,
    max_model_len: int,
    step_time: Callable[[StepShape], float],
) -> SimulationResult:
    """Run all requests to their end. Raises ConfigurationError for one that can never fit."""
    blocks = BlockManager(
        kv_plan,
        num_table_rows=options.max_num_seqs,
        max_model_len=max_model_len,
        max_chunk=options.max_num_batched_tokens,
    )
    scheduler = Scheduler(options, blocks, queue_policy(options.scheduling_policy))
    return _Simulation(scheduler, blocks, max_model_len, step_time).run(requests)


@dataclass(slots=True)
class _Simulation:
    scheduler: Scheduler
    blocks: BlockManager
    max_model_len: int
    step_time: Callable[[StepShape], float]
    result: SimulationResult = field(default_factory=SimulationResult)

    def run(self, requests: Sequence[SimulatedRequest]) -> SimulationResult:
        coming = sorted(enumerate(requests), key=lambda item: item[1].arrival_s, reverse=True)
        now = 0.0
        while coming or self.scheduler.requests:
            while coming and coming[-1][1].arrival_s <= now:
                self._add(*coming.pop())
            plan = self.scheduler.schedule()
            if plan is None:
                now = coming[-1][1].arrival_s
                continue
            now += self.step_time(_shape(plan))
            self._measure()
            self._finish_step(plan)
        self.result.duration_s = now
        self.result.num_preemptions = self.scheduler.num_preemptions
        self.result.num_recomputed_tokens = self.scheduler.num_recomputed_tokens
        self.result.num_computed_tokens = self.scheduler.num_computed_tokens
        return self.result

    def _add(self, idx: int, wanted: SimulatedRequest) -> None:
        request = Request(
            request_id=RequestId(str(idx)),
            group_id=str(idx),
            # Nobody shares a prefix: the tokens of a request are its own.
            prompt_token_ids=(idx,) * wanted.prompt_len,
            params=GenerationParams(max_tokens=wanted.output_len, seed=0),
            arrival=idx,
        )
        reason = self.scheduler.check_fits(request)
        if reason is not None:
            raise ConfigurationError(f"request {idx}: {reason}")
        self.scheduler.add(request)

    def _finish_step(self, plan: StepPlan) -> None:
        tokens = {p.request_id: [0] for p in plan.requests if p.num_logit_rows}
        self.scheduler.update(plan, tokens)
        self.result.num_steps += 1
        self.result.num_tokens_out += len(tokens)
        for request_id in tokens:
            request = self.scheduler.requests[request_id]
            if request.num_output_tokens >= request.params.max_tokens:
                self.scheduler.finish(request_id, FinishReason.LENGTH)

    def _measure(self) -> None:
        running = self.scheduler.running
        result = self.result
        result.peak_running = max(result.peak_running, len(running))
        num_tokens = sum(request.num_tokens for request in running)
        if num_tokens <= result.peak_tokens:
            return
        result.peak_tokens = num_tokens
        held = sum(max(self.blocks.num_blocks_held(request.request_id)) for request in running)
        result.peak_block_slots = held * self.blocks.block_size
        result.peak_reserved_slots = len(running) * self.max_model_len


def _shape(plan: StepPlan) -> StepShape:
    shape = EMPTY_STEP
    for planned in plan.requests:
        shape = shape.with_chunk(planned.start, planned.num_tokens, planned.num_logit_rows)
    return shape
