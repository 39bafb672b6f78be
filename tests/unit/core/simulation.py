"""Simulated serving: random workloads over the real scheduler and a model that is one hash.

The "KV" of a token is H(KV of the token before it, read through the block table; the token), and
the next token is that number modulo a tiny vocabulary. So every output depends on every block
along the way, and a request's text can be told by folding over its tokens (`text_of`). Everything
a step reads is compared with what should be there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from hasten.core.blocks import BlockManager
from hasten.core.forecast import F64, I64, Forecast, OutputLengths
from hasten.core.options import SchedulerOptions
from hasten.core.params import GenerationParams
from hasten.core.plan import PlannedRequest, StepPlan
from hasten.core.policy import FirstComeFirstServed, PriorityFirst, QueuePolicy
from hasten.core.preemption import oldest
from hasten.core.request import FinishReason, Request, RequestId
from hasten.core.scheduler import Scheduler
from hasten.kernels.backend import KVPlan
from hasten.kernels.dtypes import DType
from hasten.kernels.program import KVGroupSpec

VOCAB_SIZE = 3
STOP_EVERY = 29


def kv_plan(windows: tuple[int | None, ...], num_blocks: int, block_size: int) -> KVPlan:
    groups = tuple(KVGroupSpec(1, 1, 16, DType.BF16, window) for window in windows)
    return KVPlan(groups, (num_blocks,) * len(groups), block_size)


def make_request(
    name: str,
    prompt: tuple[int, ...],
    max_tokens: int = 8,
    arrival: int = 0,
    *,
    n: int = 1,
    sample_idx: int = 0,
    priority: int = 0,
    prompt_logprobs: int | None = None,
) -> Request:
    params = GenerationParams(max_tokens=max_tokens, seed=0, n=n, prompt_logprobs=prompt_logprobs)
    return Request(
        RequestId(f"{name}/{sample_idx}"),
        name,
        prompt,
        params,
        arrival,
        sample_idx,
        priority,
    )


def next_token(kv: int, sample_idx: int) -> int:
    return hash((kv, sample_idx)) % VOCAB_SIZE


def fold(token_ids: tuple[int, ...] | list[int], before: int = 0) -> list[int]:
    """The KV of every token."""
    kvs = []
    for token in token_ids:
        before = hash((before, token))
        kvs.append(before)
    return kvs


def text_of(request: Request, stop_every: int) -> list[int]:
    """What the request has to answer, worked out alone."""
    tokens: list[int] = []
    kv = fold(request.prompt_token_ids)[-1]
    while len(tokens) < request.params.max_tokens:
        tokens.append(next_token(kv, request.sample_idx))
        kv = hash((kv, tokens[-1]))
        if kv % stop_every == 0:
            break
    return tokens


class Optimist(Forecast):
    """Expects every output to end at once, and lets too many in: they get preempted."""

    def __init__(self, blocks: BlockManager) -> None:
        super().__init__(blocks)
        self._lengths = EmptyOutputs()


class FullLength(Forecast):
    """Expects every output to get as long as it may."""

    def __init__(self, blocks: BlockManager) -> None:
        super().__init__(blocks)
        self._lengths = EndlessOutputs()


class EmptyOutputs(OutputLengths):
    def survival(self, ages: I64, times: I64) -> F64:
        return np.outer(times == 0, np.ones(len(ages)))


class EndlessOutputs(OutputLengths):
    def survival(self, ages: I64, times: I64) -> F64:
        return np.ones((len(times), len(ages)))


FCFS = FirstComeFirstServed()
POLICIES: list[QueuePolicy] = [
    FCFS,
    FirstComeFirstServed(min_chunk=2),
    PriorityFirst(),
    PriorityFirst(min_chunk=2),
]


@dataclass(frozen=True, slots=True)
class Setting:
    """A server to simulate."""

    windows: tuple[int | None, ...] = (None,)
    num_blocks: int = 24
    block_size: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 48
    policy: QueuePolicy = FCFS
    enable_prefix_caching: bool = True
    max_drafts: int = 0
    stop_every: int = STOP_EVERY
    forecast: type[Forecast] = Forecast


@dataclass(slots=True)
class Simulation:
    """Runs a scheduler against simulated memory and checks every step."""

    setting: Setting
    rng: random.Random
    blocks: BlockManager = field(init=False)
    scheduler: Scheduler = field(init=False)
    memory: list[list[list[int]]] = field(init=False)
    expected: dict[RequestId, list[int]] = field(default_factory=dict)
    texts: dict[RequestId, list[int]] = field(default_factory=dict)
    peak_blocks: int = 0
    num_steps: int = 0

    def __post_init__(self) -> None:
        s = self.setting
        self.blocks = BlockManager(
            kv_plan(s.windows, s.num_blocks, s.block_size),
            num_table_rows=s.max_num_seqs,
            max_model_len=s.max_model_len,
            max_chunk=s.max_num_batched_tokens,
            enable_prefix_caching=s.enable_prefix_caching,
        )
        self.scheduler = Scheduler(
            SchedulerOptions(
                max_num_seqs=s.max_num_seqs, max_num_batched_tokens=s.max_num_batched_tokens
            ),
            self.blocks,
            s.policy,
            forecast=s.forecast(self.blocks),
        )
        self.memory = [[[0] * s.block_size for _ in range(s.num_blocks)] for _ in s.windows]

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.expected[request.request_id] = fold(request.prompt_token_ids)
        self.texts[request.request_id] = text_of(request, self.setting.stop_every)

    def step(self) -> bool:
        """One step with all its checks; False when there is nothing to do."""
        running = self.scheduler.running.copy()
        before = {r.request_id: r.num_tokens_at_preemption for r in running}
        spared = self._spared(running)
        plan = self.scheduler.schedule()
        if plan is None:
            assert not self.scheduler.requests, "requests are left but nothing is planned"
            return False
        self._check_plan(plan)
        for request_id in plan.preempted:
            assert spared is None or request_id != spared.request_id, "the oldest was preempted"
            request = self.scheduler.requests[request_id]
            assert request.num_tokens > before[request_id], "preempted again without a token"
        free, usable = self.blocks.num_free_blocks, self.blocks.num_usable_blocks
        self.peak_blocks = max(self.peak_blocks, usable[0] - free[0])
        self._copy(plan)
        accepted = {p.request_id: self._compute(p) for p in plan.requests}
        self.scheduler.update(plan, accepted)
        self.blocks.check_integrity()
        self._after(accepted)
        self.num_steps += 1
        return True

    def _spared(self, running: list[Request]) -> Request | None:
        """The oldest of the most urgent, unless somebody more urgent waits."""
        policy = self.scheduler._policy
        spared = oldest(running, policy) if running else None
        head = self.scheduler.queue.head()
        if spared is None or (head is not None and policy.level(head) < policy.level(spared)):
            return None
        return spared

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.setting.max_num_batched_tokens
        ids = [p.request_id for p in plan.requests]
        assert len(set(ids)) == len(ids), "a request is planned twice"
        assert ids, "an empty plan"
        for p in plan.requests:
            request = self.scheduler.requests[p.request_id]
            assert p.start == request.num_computed_tokens
            assert len(request.draft_token_ids) == p.num_drafts
            end = p.start + p.num_tokens - p.num_drafts
            assert p.num_tokens > p.num_drafts
            assert end <= request.num_tokens
            if request.scores_prompt:
                assert p.num_logit_rows == p.num_tokens
            else:
                assert p.num_logit_rows == (p.num_drafts + 1 if end == request.num_tokens else 0)

    def _copy(self, plan: StepPlan) -> None:
        sources = {(c.group_id, c.source) for c in plan.block_copies}
        targets = [(c.group_id, c.destination) for c in plan.block_copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        assert not sources & set(targets), "a block is copied and overwritten in one plan"
        for c in plan.block_copies:
            memory = self.memory[c.group_id]
            memory[c.destination] = memory[c.source].copy()

    def _compute(self, p: PlannedRequest) -> list[int]:
        """Write the KV of the planned tokens and return those that are kept."""
        request = self.scheduler.requests[p.request_id]
        tokens = (request.token_ids[p.start :] + request.draft_token_ids)[: p.num_tokens]
        kvs = [0]
        for group_id, window in enumerate(self.setting.windows):
            first = 0 if window is None else max(0, p.start - window + 1)
            table = self.blocks.tables[group_id][self.blocks.table_row(p.request_id)].tolist()
            kvs = self._write(group_id, table, p, first, tokens)
        if p.start + p.num_tokens - p.num_drafts < request.num_tokens:
            return []
        kept = []
        for idx in range(len(kvs) - p.num_drafts - 1, len(kvs)):
            kept.append(next_token(kvs[idx], request.sample_idx))
            if idx + 1 == len(kvs) or kept[-1] != tokens[idx + 1]:
                break
        return self._cut(request, kept)

    def _write(
        self, group_id: int, table: list[int], p: PlannedRequest, first: int, tokens: list[int]
    ) -> list[int]:
        memory, size = self.memory[group_id], self.setting.block_size
        found: list[int] = []
        for idx in range(first // size, -(-p.start // size)):
            found += memory[table[idx]]
        begin = first // size * size
        expected = self.expected[p.request_id]
        assert found[first - begin : p.start - begin] == expected[first : p.start], "wrong KV"
        kvs = fold(tokens, found[p.start - begin - 1] if p.start else 0)
        for position, kv in enumerate(kvs, start=p.start):
            block = table[position // size]
            assert block != 0, "a write into the null block"
            memory[block][position % size] = kv
        return kvs

    def _cut(self, request: Request, kept: list[int]) -> list[int]:
        """Kept tokens up to the end of the output."""
        kept = kept[: request.params.max_tokens - request.num_output_tokens]
        kvs = fold(kept, self.expected[request.request_id][request.num_tokens - 1])
        for count, kv in enumerate(kvs, start=1):
            if kv % self.setting.stop_every == 0:
                return kept[:count]
        return kept

    def _after(self, accepted: dict[RequestId, list[int]]) -> None:
        for request_id, tokens in accepted.items():
            request = self.scheduler.requests[request_id]
            expected = self.expected[request_id]
            expected += fold(tokens, expected[-1])
            if not tokens:
                continue
            is_stop = expected[-1] % self.setting.stop_every == 0
            if is_stop or request.num_output_tokens == request.params.max_tokens:
                assert request.output_token_ids == self.texts[request_id], "another text than alone"
                self.scheduler.finish(request_id, FinishReason.LENGTH)
            elif self.setting.max_drafts:
                request.draft_token_ids = self._drafts(request)

    def _drafts(self, request: Request) -> list[int]:
        """What will come, with mistakes."""
        rest = self.texts[request.request_id][request.num_output_tokens :]
        rest = rest[: self.rng.randrange(self.setting.max_drafts + 1)]
        return [token if self.rng.random() < 0.7 else 0 for token in rest]

    def check_end(self) -> None:
        """Everything came back."""
        assert not self.scheduler.requests
        assert not self.scheduler.waiting
        assert not self.scheduler.running
        assert not self.scheduler._siblings
        assert self.blocks.num_free_blocks == self.blocks.num_usable_blocks


def random_setting(rng: random.Random) -> Setting:
    """A small server, tight more often than not; any single request fits it."""
    windows = rng.choice([(None,), (None,), (None, 6), (9, None, 5), (7,)])
    max_model_len = 40
    return Setting(
        windows=windows,
        num_blocks=rng.randrange(11, 24),
        max_num_seqs=rng.randrange(2, 6),
        max_num_batched_tokens=rng.choice([6, 9, 16, 64]),
        max_model_len=max_model_len,
        policy=rng.choice(POLICIES),
        enable_prefix_caching=rng.random() < 0.8,
        max_drafts=rng.choice([0, 0, 3, 8]),
        forecast=rng.choice([Forecast, Optimist, Optimist]),
    )


def random_requests(rng: random.Random, num_requests: int, first: int = 0) -> list[Request]:
    """Prompts over a tiny vocabulary that share prefixes often; some with several samples."""
    stem = [rng.randrange(VOCAB_SIZE) for _ in range(24)]
    requests = []
    for arrival in range(first, first + num_requests):
        num_shared = rng.randrange(20)
        tail = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 8))]
        prompt = tuple(stem[:num_shared] + tail)
        n = rng.choice([1, 1, 2, 3])
        max_tokens = rng.randrange(1, 40 - len(prompt) + 1)
        priority = rng.randrange(3)
        scored = 1 if rng.random() < 0.1 else None
        for idx in range(n):
            request = make_request(
                f"r{arrival}",
                prompt,
                max_tokens,
                arrival,
                n=n,
                sample_idx=idx,
                priority=priority,
                prompt_logprobs=None if idx else scored,
            )
            requests.append(request)
    return requests


def run_random_workload(seed: int) -> Simulation:
    """Serve a random workload with arrivals and aborts on the way, and prove it came out right."""
    rng = random.Random(seed)
    simulation = Simulation(random_setting(rng), rng)
    pending = random_requests(rng, rng.randrange(1, 5))
    abort_rate = rng.choice([0.0, 0.0, 0.1])
    arrival_rate = rng.choice([1.0, 0.5])
    while pending or simulation.scheduler.requests:
        while pending and rng.random() < arrival_rate:
            simulation.add(pending.pop(0))
        if abort_rate and rng.random() < abort_rate and simulation.scheduler.requests:
            victim = rng.choice(sorted(simulation.scheduler.requests))
            simulation.scheduler.abort(victim)
            simulation.blocks.check_integrity()
        simulation.step()
        assert simulation.num_steps < 2000, "no end in sight"
    simulation.check_end()
    return simulation
