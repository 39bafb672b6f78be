"""Workloads of many lengths over the real scheduler, with outputs that end where they are told.

Faster than `simulation`, which checks what every step reads; here only counts matter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from hasten.core.blocks import BlockManager
from hasten.core.forecast import Forecast
from hasten.core.options import SchedulerOptions
from hasten.core.policy import FirstComeFirstServed
from hasten.core.request import FinishReason, RequestId
from hasten.core.scheduler import Scheduler

from tests.unit.core.simulation import kv_plan, make_request

MAX_SEQS = 64
MAX_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Wish:
    """`num_samples` outputs of `output_len` tokens, where `max_tokens` are allowed."""

    prompt_len: int
    max_tokens: int
    output_len: int
    at_step: int = 0
    num_samples: int = 1

    def num_blocks(self, block_size: int) -> int:
        """Blocks that all samples fill, each alone."""
        return self.num_samples * -(-(self.prompt_len + self.output_len - 1) // block_size)

    def most_blocks(self, block_size: int) -> int:
        """Blocks that a sample of full length fills."""
        return -(-(self.prompt_len + self.max_tokens - 1) // block_size)


Workload = Callable[[random.Random], list[Wish]]


def to_max_tokens(num: int, prompts: range, outputs: range) -> Workload:
    def workload(rng: random.Random) -> list[Wish]:
        lens = [(rng.choice(prompts), rng.choice(outputs)) for _ in range(num)]
        return [Wish(prompt, output, output) for prompt, output in lens]

    return workload


def ended_by_eos(
    num: int,
    prompts: range,
    max_tokens: int,
    output: Callable[[random.Random], float],
    *,
    num_samples: int = 1,
    steps_apart: float = 0.0,
) -> Workload:
    def workload(rng: random.Random) -> list[Wish]:
        wishes, at_step = [], 0.0
        for _ in range(num):
            output_len = min(max_tokens, max(1, int(output(rng))))
            prompt_len = rng.choice(prompts)
            wishes.append(Wish(prompt_len, max_tokens, output_len, int(at_step), num_samples))
            at_step += rng.expovariate(1.0) * steps_apart
        return wishes

    return workload


def exponential(mean: float) -> Callable[[random.Random], float]:
    return lambda rng: rng.expovariate(1 / mean)


def constant(output_len: int) -> Callable[[random.Random], float]:
    return lambda _: output_len


def log_normal(median: float) -> Callable[[random.Random], float]:
    return lambda rng: median * math.exp(rng.gauss(0, 0.6))


SHORT, MEDIUM, LONG = range(10, 60), range(20, 400), range(300, 700)

WORKLOADS: dict[str, Workload] = {
    "16 tiny": to_max_tokens(16, range(1, 60), range(10, 21)),
    "16 short, short": to_max_tokens(16, SHORT, range(20, 120)),
    "16 of one length": to_max_tokens(16, range(15, 16), range(100, 101)),
    "16 short, long": to_max_tokens(16, SHORT, range(200, 700)),
    "16 long, short": to_max_tokens(16, LONG, range(10, 80)),
    "16 long, long": to_max_tokens(16, LONG, range(200, 700)),
    "64 chats": to_max_tokens(64, MEDIUM, MEDIUM),
    "64 short, long": to_max_tokens(64, SHORT, range(200, 700)),
    "16 uniform of 400": ended_by_eos(16, SHORT, 400, lambda rng: rng.randint(1, 400)),
    "16 exponential of 400": ended_by_eos(16, SHORT, 400, exponential(100)),
    "16 long, exponential": ended_by_eos(16, LONG, 400, exponential(100)),
    "16 log-normal of 2000": ended_by_eos(16, SHORT, 2000, log_normal(200)),
    "64 log-normal of 2000": ended_by_eos(64, SHORT, 2000, log_normal(200)),
    "64 constant of 1000": ended_by_eos(64, SHORT, 1000, constant(200)),
    "64 two kinds of 1000": ended_by_eos(64, SHORT, 1000, lambda rng: rng.choice((20, 500))),
    "8 x 4 samples": ended_by_eos(8, MEDIUM, 300, exponential(100), num_samples=4),
    "200 one by one": ended_by_eos(200, MEDIUM, 2000, log_normal(200), steps_apart=12),
}


def serve(
    wishes: list[Wish], num_blocks: int, block_size: int, forecast: type[Forecast] = Forecast
) -> Served:
    """Serve everything in so many usable blocks."""
    blocks = BlockManager(
        kv_plan((None,), num_blocks + 1, block_size),
        num_table_rows=MAX_SEQS,
        max_model_len=max(wish.prompt_len + wish.max_tokens for wish in wishes),
        max_chunk=MAX_STEP_TOKENS,
    )
    options = SchedulerOptions(max_num_seqs=MAX_SEQS, max_num_batched_tokens=MAX_STEP_TOKENS)
    scheduler = Scheduler(options, blocks, FirstComeFirstServed(), forecast=forecast(blocks))
    served = Served(scheduler, blocks)
    for idx, wish in enumerate(wishes):
        while served.num_steps < wish.at_step:
            served.step()
        prompt = tuple(range(idx * 10_000, idx * 10_000 + wish.prompt_len))
        for sample_idx in range(wish.num_samples):
            request = make_request(
                str(idx), prompt, wish.max_tokens, idx, n=wish.num_samples, sample_idx=sample_idx
            )
            scheduler.add(request)
            served.output_lens[request.request_id] = wish.output_len
    while scheduler.requests:
        served.step()
    return served


class Served:
    """A scheduler at work, and what it took."""

    def __init__(self, scheduler: Scheduler, blocks: BlockManager) -> None:
        self.scheduler = scheduler
        self.blocks = blocks
        self.output_lens: dict[RequestId, int] = {}
        self.num_steps = 0
        self.peak_blocks = 0
        self.preempted: set[RequestId] = set()

    @property
    def recomputed_share(self) -> float:
        return self.scheduler.num_recomputed_tokens / self.scheduler.num_computed_tokens

    def step(self) -> None:
        self.num_steps += 1
        plan = self.scheduler.schedule()
        if plan is None:
            return
        self.preempted.update(plan.preempted)
        held = self.blocks.num_usable_blocks[0] - self.blocks.num_free_blocks[0]
        self.peak_blocks = max(self.peak_blocks, held)
        # Outputs are hashes of their place, so that nobody finds anybody else's in the cache.
        accepted = {
            p.request_id: [hash((p.request_id, p.start)) % 2**31]
            for p in plan.requests
            if p.num_logit_rows
        }
        self.scheduler.update(plan, accepted)
        for request_id in accepted:
            request = self.scheduler.requests[request_id]
            if request.num_output_tokens == self.output_lens[request_id]:
                is_cut = request.num_output_tokens == request.params.max_tokens
                self.scheduler.finish(
                    request_id, FinishReason.LENGTH if is_cut else FinishReason.STOP
                )


def ample(wishes: list[Wish], block_size: int) -> Served:
    return serve(wishes, sum(wish.num_blocks(block_size) for wish in wishes) + 4000, block_size)


def pool_of_60_percent(wishes: list[Wish], block_size: int, demand: int) -> int:
    """Usable blocks for 60 % of `demand`, but enough for any one request of full length."""
    return max(demand * 6 // 10, *(wish.most_blocks(block_size) for wish in wishes))


def full_demand(wishes: list[Wish], block_size: int) -> int:
    """Blocks that all requests fill when each has reached its end."""
    return sum(wish.num_blocks(block_size) for wish in wishes)
