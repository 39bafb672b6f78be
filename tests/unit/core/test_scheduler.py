"""Scheduling, rule by rule. Whole workloads are in `test_scheduler_simulation.py`."""

from __future__ import annotations

import random

import pytest
from hasten.core.blocks import BlockManager
from hasten.core.forecast import Forecast
from hasten.core.latency import StepShape
from hasten.core.options import SchedulerOptions
from hasten.core.plan import StepPlan
from hasten.core.policy import FirstComeFirstServed, PriorityFirst, QueuePolicy
from hasten.core.preemption import choose_victim, oldest
from hasten.core.request import FinishReason, Request, RequestId, RequestStatus
from hasten.core.scheduler import Scheduler

from tests.unit.core.simulation import Optimist, Setting, Simulation, kv_plan, make_request

SIZE = 4


class Server:
    """A scheduler whose model always answers token 0."""

    def __init__(
        self,
        num_blocks: int = 65,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 16,
        policy: QueuePolicy | None = None,
        budget: ChunksOfThree | None = None,
        forecast: type[Forecast] = Forecast,
        *,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.blocks = BlockManager(
            kv_plan((None,), num_blocks, SIZE),
            num_table_rows=max_num_seqs,
            max_model_len=128,
            max_chunk=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
        )
        options = SchedulerOptions(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        self.scheduler = Scheduler(
            options,
            self.blocks,
            policy or FirstComeFirstServed(),
            budget,
            forecast(self.blocks),
        )

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.blocks.check_integrity()
        return plan

    def step(self) -> dict[str, int]:
        """One step; returns how many tokens each request computed."""
        plan = self.schedule()
        accepted: dict[RequestId, list[int]] = {}
        for planned in plan.requests:
            request = self.scheduler.requests[planned.request_id]
            if planned.start + planned.num_tokens - planned.num_drafts == request.num_tokens:
                accepted[planned.request_id] = [0]
        self.scheduler.update(plan, accepted)
        for request_id in accepted:
            request = self.scheduler.requests[request_id]
            if request.num_output_tokens == request.params.max_tokens:
                self.scheduler.finish(request_id, FinishReason.LENGTH)
        self.blocks.check_integrity()
        return {planned.request_id: planned.num_tokens for planned in plan.requests}


class ChunksOfThree:
    """A budget that grants three tokens beside decoding requests."""

    def max_chunk(self, step: StepShape, start: int, wanted: int, share: float = 1.0) -> int:
        assert share in (0.5, 1.0)
        assert step.num_requests > 0
        assert start >= 0
        assert step.kv_tokens_read >= step.num_tokens
        return min(3, wanted)

    def has_room(self, step: StepShape, start: int, wanted: int) -> bool:
        assert wanted > 0 <= start
        return 0 < step.num_requests > step.num_tokens - 2


def test_nothing_to_do() -> None:
    assert Server().scheduler.schedule() is None


def test_a_prompt_comes_in_chunks_and_decodes() -> None:
    server = Server()
    request = make_request("a", tuple(range(40)), max_tokens=3)
    server.add(request)
    plans = [server.step() for _ in range(5)]
    assert plans == [{"a/0": 16}, {"a/0": 16}, {"a/0": 8}, {"a/0": 1}, {"a/0": 1}]
    assert request.status is RequestStatus.FINISHED
    assert request.output_token_ids == [0, 0, 0]
    assert server.scheduler.schedule() is None


def test_decoding_goes_before_prompts() -> None:
    server = Server()
    server.add(make_request("a", (1,) * 4), make_request("b", (2,) * 40, arrival=1))
    assert server.step() == {"a/0": 4, "b/0": 12}
    plan = server.schedule()
    assert [(p.request_id, p.num_tokens, p.num_logit_rows) for p in plan.requests] == [
        ("a/0", 1, 1),
        ("b/0", 15, 0),
    ]


def test_a_budget_cuts_prompts_only_while_others_decode() -> None:
    server = Server(budget=ChunksOfThree())
    server.add(make_request("a", (1,) * 4), make_request("b", (2,) * 7, arrival=1))
    assert server.step() == {"a/0": 4, "b/0": 7}
    server.add(make_request("c", (3,) * 5, arrival=2), make_request("d", (4,) * 5, arrival=3))
    assert server.step() == {"a/0": 1, "b/0": 1, "c/0": 3}
    assert server.step() == {"a/0": 1, "b/0": 1, "c/0": 2, "d/0": 3}


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    server = Server(policy=FirstComeFirstServed(min_chunk=4))
    server.add(make_request("long", (1,) * 100, max_tokens=1))
    assert server.step() == {"long/0": 16}
    server.add(make_request("short", (2,) * 6, arrival=1))
    assert server.step() == {"long/0": 10, "short/0": 6}  # 8 and 8, of which 2 are left over
    assert server.step() == {"short/0": 1, "long/0": 15}


def test_what_nobody_else_can_use_goes_to_the_long_prompt() -> None:
    server = Server(num_blocks=28, policy=FirstComeFirstServed(min_chunk=4))
    server.add(make_request("long", (1,) * 100, max_tokens=1))
    server.add(make_request("blocked", (2,) * 20, arrival=1))
    assert server.step() == {"long/0": 16}
    assert server.step() == {"long/0": 16}


def test_only_so_many_run() -> None:
    server = Server(max_num_seqs=2)
    server.add(*(make_request(str(i), (i,), max_tokens=2, arrival=i) for i in range(3)))
    assert list(server.step()) == ["0/0", "1/0"]
    assert [r.request_id for r in server.scheduler.waiting] == ["2/0"]
    server.step()
    assert list(server.step()) == ["2/0"]


def test_a_prompt_enters_only_whole() -> None:
    server = Server(num_blocks=9)
    server.add(make_request("a", (1,) * 20, max_tokens=4))
    server.add(make_request("b", (2,) * 16, max_tokens=4, arrival=1))
    assert server.step() == {"a/0": 16}
    assert server.step() == {"a/0": 4}, "b was let in where it does not fit"


def test_a_request_that_never_fits_is_refused_with_numbers() -> None:
    server = Server(num_blocks=9)
    reason = server.scheduler.check_fits(make_request("a", (1,) * 30, max_tokens=4))
    assert reason is not None
    assert "30 prompt tokens" in reason
    assert "need 9 KV cache blocks of 4 tokens, but there are 8" in reason
    too_long = server.scheduler.check_fits(make_request("a", (1,) * 100, max_tokens=30))
    assert too_long is not None
    assert "exceed the context of 128 tokens" in too_long
    assert server.scheduler.check_fits(make_request("a", (1,) * 29, max_tokens=4)) is None
    with pytest.raises(ValueError, match="need 9 KV cache blocks"):
        server.add(make_request("a", (1,) * 30, max_tokens=4))


def test_an_id_is_used_once() -> None:
    server = Server()
    server.add(make_request("a", (1,)))
    with pytest.raises(ValueError, match="in use"):
        server.add(make_request("a", (1,)))


def test_a_step_has_to_produce() -> None:
    server = Server()
    server.add(make_request("a", (1,)))
    plan = server.schedule()
    with pytest.raises(ValueError, match="produced no token"):
        server.scheduler.update(plan, {})


def test_drafts_are_verified_and_dropped() -> None:
    server = Server()
    request = make_request("a", (1, 2, 3), max_tokens=20)
    server.add(request)
    server.step()
    request.draft_token_ids = [5, 6, 7, 8]
    plan = server.schedule()
    (planned,) = plan.requests
    assert (planned.start, planned.num_tokens, planned.num_drafts) == (3, 5, 4)
    assert planned.num_logit_rows == 5
    server.scheduler.update(plan, {request.request_id: [5, 6, 9]})
    assert request.output_token_ids == [0, 5, 6, 9]
    assert request.num_computed_tokens == 6
    assert request.draft_token_ids == []
    assert server.blocks.num_blocks_held(request.request_id) == (2,)


def test_drafts_are_cut_to_what_can_become_output() -> None:
    server = Server()
    request = make_request("a", (1, 2, 3), max_tokens=4)
    server.add(request)
    server.step()
    request.draft_token_ids = [5, 6, 7, 8]
    (planned,) = server.schedule().requests
    assert planned.num_drafts == 2
    assert request.draft_token_ids == [5, 6]


def test_drafts_leave_every_request_a_token() -> None:
    server = Server(max_num_seqs=4, max_num_batched_tokens=6)
    requests = [make_request(str(i), (i,), max_tokens=20, arrival=i) for i in range(4)]
    server.add(*requests)
    server.step()
    for request in requests:
        request.draft_token_ids = [1, 2, 3]
    plan = server.schedule()
    assert [p.num_drafts for p in plan.requests] == [2, 0, 0, 0]


def test_drafts_neither_evict_nor_preempt() -> None:
    """Depth shrinks first: here no block is empty, so drafts get the slots left in their own."""
    server = Server(num_blocks=5)
    cached = make_request("a", (1,) * 9, max_tokens=1)
    server.add(cached)
    server.step()
    request = make_request("b", (2,) * 6, max_tokens=8, arrival=1)
    server.add(request)
    server.step()
    request.draft_token_ids = [5] * 6
    (planned,) = server.schedule().requests
    assert planned.num_drafts == 1
    assert server.blocks.quote(make_request("c", (1,) * 9)).num_shared_tokens == 8


def test_samples_wait_for_their_prompt_and_compute_one_token() -> None:
    server = Server()
    prompt = tuple(range(22))
    samples = [make_request("a", prompt, n=3, sample_idx=i) for i in range(3)]
    server.add(*samples, make_request("b", (1,) * 4, arrival=1))
    assert server.step() == {"a/0": 16}
    assert server.step() == {"a/0": 6, "b/0": 4}
    assert server.step() == {"a/0": 1, "b/0": 1, "a/1": 1, "a/2": 1}
    shared = server.blocks.num_usable_blocks[0] - server.blocks.num_free_blocks[0]
    assert shared == 5 + 3 + 2
    assert server.scheduler.num_computed_tokens == 22 + 4 + 4


def test_many_samples_compute_their_prompt_once_though_two_run_at_a_time() -> None:
    """Whoever of them runs can be forked, also when the first has ended long ago."""
    server = Server(max_num_seqs=2, enable_prefix_caching=False)
    samples = [make_request("a", tuple(range(22)), n=7, sample_idx=i) for i in range(7)]
    server.add(*samples)
    while server.scheduler.requests:
        server.step()
    assert server.scheduler.num_computed_tokens == 21 + 7 * 8


def test_samples_wait_on_for_a_leader_that_is_preempted() -> None:
    """It comes back before them anyway: they had better not compute its prompt beside it."""
    server = Server(
        num_blocks=12,
        policy=PriorityFirst(),
        budget=ChunksOfThree(),
        forecast=Optimist,
        enable_prefix_caching=False,
    )
    server.add(make_request("urgent", (1,) * 5, max_tokens=30))
    server.step()
    samples = [
        make_request("a", tuple(range(32)), 4, 1, n=3, sample_idx=i, priority=1) for i in range(3)
    ]
    server.add(*samples)
    while not server.scheduler.num_preemptions:
        server.step()
    assert samples[0].num_output_tokens == 0
    assert samples[0].num_computed_at_preemption > 0
    while server.scheduler.requests:
        server.step()
    num_computed = server.scheduler.num_computed_tokens - server.scheduler.num_recomputed_tokens
    assert num_computed == 5 + 29 + 31 + 3 * 4


@pytest.mark.parametrize("has_prompt", [False, True])
def test_samples_whose_leader_is_gone_go_on(has_prompt: bool) -> None:
    server = Server()
    samples = [make_request("a", tuple(range(22)), n=3, sample_idx=i) for i in range(3)]
    server.add(*samples)
    server.step()
    if has_prompt:
        server.step()
    server.scheduler.abort(samples[0].request_id)
    while server.scheduler.requests:
        server.step()
    assert [len(sample.output_token_ids) for sample in samples[1:]] == [8, 8]
    assert server.blocks.num_free_blocks == server.blocks.num_usable_blocks


def test_the_next_sample_computes_the_prompt_when_the_first_is_gone() -> None:
    server = Server(enable_prefix_caching=False)
    samples = [make_request("a", tuple(range(22)), n=3, sample_idx=i) for i in range(3)]
    server.add(*samples)
    server.step()
    server.scheduler.abort(samples[0].request_id)
    while server.scheduler.requests:
        server.step()
    assert server.scheduler.num_computed_tokens == 16 + 21 + 2 * 8


def test_aborts_in_every_phase_return_every_block() -> None:
    for phase in range(5):
        server = Server()
        samples = [make_request("a", tuple(range(22)), n=3, sample_idx=i) for i in range(3)]
        server.add(*samples, make_request("w", (1,) * 100, max_tokens=2, arrival=1))
        for _ in range(phase):
            server.step()
        server.scheduler.abort(RequestId("unknown"))
        for request_id in list(server.scheduler.requests):
            server.scheduler.abort(request_id)
            server.blocks.check_integrity()
        assert server.blocks.num_free_blocks == server.blocks.num_usable_blocks
        assert server.scheduler.schedule() is None


def test_an_abort_between_plan_and_update() -> None:
    server = Server()
    server.add(make_request("a", (1,) * 4), make_request("b", (2,) * 4, arrival=1))
    plan = server.schedule()
    server.scheduler.abort(RequestId("a/0"))
    server.scheduler.update(plan, {RequestId("a/0"): [0], RequestId("b/0"): [0]})
    assert list(server.step()) == ["b/0"]


def test_scored_prompts_want_all_rows_until_the_first_output() -> None:
    server = Server()
    request = make_request("a", (1,) * 20, prompt_logprobs=2)
    server.add(request)
    rows = []
    for _ in range(3):
        plan = server.schedule()
        rows.append([(p.num_tokens, p.num_logit_rows) for p in plan.requests])
        end = plan.requests[0].start + plan.requests[0].num_tokens
        server.scheduler.update(plan, {request.request_id: [0]} if end >= 20 else {})
    assert rows == [[(16, 16)], [(4, 4)], [(1, 1)]]


def preempted_server(policy: QueuePolicy | None = None) -> tuple[Server, list[Request]]:
    """Three requests, decoding, in a pool that their growth is about to exhaust."""
    server = Server(num_blocks=13, policy=policy, forecast=Optimist)
    requests = [
        make_request(str(i), (i,) * 5, max_tokens=30, arrival=i, priority=-i) for i in range(3)
    ]
    server.add(*requests)
    while not server.scheduler.num_preemptions:
        server.step()
    return server, requests


def test_the_oldest_stays_and_the_last_goes() -> None:
    _, requests = preempted_server()
    assert [request.num_preemptions for request in requests] == [0, 0, 1]


def test_the_least_urgent_goes() -> None:
    _, requests = preempted_server(PriorityFirst())
    assert [request.num_preemptions for request in requests] == [1, 0, 0]


def test_the_preempted_come_back_and_everybody_finishes() -> None:
    server, requests = preempted_server()
    victim = requests[2]
    assert victim.status is RequestStatus.WAITING
    assert victim.num_computed_tokens == 0
    server.add(make_request("late", (9,), arrival=3))
    assert [r.request_id for r in server.scheduler.waiting] == ["2/0", "late/0"]
    while server.scheduler.requests:
        server.step()
    assert all(len(request.output_token_ids) == 30 for request in requests)
    assert server.scheduler.num_recomputed_tokens > 0
    assert server.blocks.num_free_blocks == server.blocks.num_usable_blocks


def test_a_victim_frees_something_and_loses_little() -> None:
    """A fork that shares all its blocks is no victim; its sibling's own tail would be freed."""
    server = Server(policy=FirstComeFirstServed())
    first = make_request("old", (7,) * 4)
    samples = [make_request("a", tuple(range(9)), n=2, sample_idx=i, arrival=1) for i in range(2)]
    server.add(first, *samples)
    for _ in range(2):
        server.step()
    running = server.scheduler.running
    assert oldest(running, FirstComeFirstServed()) is first
    for request in running:
        request.num_computed_tokens = request.num_tokens - 1
    victim = choose_victim(first, running, FirstComeFirstServed(), server.blocks)
    assert victim is samples[1]
    assert server.blocks.freed_by_preemption(samples[1].request_id) == (1, 1)


def test_no_victim_among_those_that_got_nothing_since() -> None:
    server, requests = preempted_server()
    running = [requests[0], requests[1]]
    requests[1].num_tokens_at_preemption = requests[1].num_tokens
    policy = FirstComeFirstServed()
    assert choose_victim(requests[0], running, policy, server.blocks) is None


def test_priorities_never_change_a_text() -> None:
    """The same requests under both policies, in a tight pool, with drafts."""
    texts = []
    for policy in (FirstComeFirstServed(min_chunk=2), PriorityFirst()):
        rng = random.Random(5)
        setting = Setting(num_blocks=14, policy=policy, max_drafts=3, forecast=Optimist)
        simulation = Simulation(setting, rng)
        requests = [
            make_request(str(i), tuple(rng.choices(range(3), k=8)), 20, i, priority=-i)
            for i in range(6)
        ]
        for request in requests:
            simulation.add(request)
        while simulation.step():
            pass
        simulation.check_end()
        texts.append([request.output_token_ids for request in requests])
    assert texts[0] == texts[1]
