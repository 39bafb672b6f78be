"""How long planning a step takes. Not a test:

    python -m tests.unit.core.bench_scheduler

Prints microseconds per step of `schedule` and `update` together, by number of decoding requests and
of drafts for each; the goals are 250 for 64 requests and 12 for one, without drafts. CPU time is
what counts on a machine that does other things as well.
"""

from __future__ import annotations

import sys
from statistics import mean, median
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

from hasten.core.blocks import BlockManager
from hasten.core.options import SchedulerOptions
from hasten.core.policy import FirstComeFirstServed
from hasten.core.scheduler import Scheduler

from tests.unit.core.simulation import kv_plan, make_request

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_MODEL_LEN = 2048
NUM_STEPS = 600
CASES = ((1, 0), (8, 0), (64, 0), (64, 4))


def decoding_scheduler(num_requests: int) -> Scheduler:
    """A scheduler whose requests have all computed their prompts of 200 tokens."""
    blocks = BlockManager(
        kv_plan((None,), num_requests * MAX_MODEL_LEN // 16 + 1, 16),
        num_table_rows=num_requests,
        max_model_len=MAX_MODEL_LEN,
        max_chunk=MAX_MODEL_LEN,
    )
    options = SchedulerOptions(max_num_seqs=num_requests)
    scheduler = Scheduler(options, blocks, FirstComeFirstServed())
    for idx in range(num_requests):
        prompt = tuple(range(idx, idx + 200))
        scheduler.add(make_request(str(idx), prompt, MAX_MODEL_LEN - 200, idx))
    while any(r.num_output_tokens == 0 for r in scheduler.requests.values()):
        one_step(scheduler)
    return scheduler


def one_step(scheduler: Scheduler, clock: Callable[[], int] = perf_counter_ns) -> float:
    """Microseconds that `schedule` and `update` took, every draft being accepted but the last."""
    begin = clock()
    plan = scheduler.schedule()
    planned = clock()
    assert plan is not None
    accepted = {p.request_id: [1] * max(1, p.num_drafts) for p in plan.requests if p.num_logit_rows}
    resumed = clock()
    scheduler.update(plan, accepted)
    return (clock() - resumed + planned - begin) / 1000


def measure(num_requests: int, num_drafts: int, clock: Callable[[], int]) -> list[float]:
    scheduler = decoding_scheduler(num_requests)
    times = []
    for _ in range(NUM_STEPS // (num_drafts + 1)):
        for request in scheduler.running:
            request.draft_token_ids = [1] * num_drafts
        times.append(one_step(scheduler, clock))
    return times


def main() -> None:
    sys.stdout.write("requests  drafts  median us  mean CPU us\n")
    for num_requests, num_drafts in CASES:
        wall = median(measure(num_requests, num_drafts, perf_counter_ns))
        cpu = mean(measure(num_requests, num_drafts, thread_time_ns))
        sys.stdout.write(f"{num_requests:8} {num_drafts:7} {wall:10.1f} {cpu:12.1f}\n")


if __name__ == "__main__":
    main()
