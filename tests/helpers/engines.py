"""Engines for tests: built from parts small enough to see through, and driven to the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hasten.core.blocks import BlockManager
from hasten.core.engine import Engine
from hasten.core.messages import AddRequest, EngineReady, PositionLogprobs, TokenOutput
from hasten.core.options import SchedulerOptions
from hasten.core.params import GenerationParams
from hasten.core.parts import EngineParts
from hasten.core.policies import queue_policy
from hasten.core.policy import StepBudget
from hasten.core.protocols import Executor, Speculator
from hasten.core.scheduler import Scheduler
from hasten.core.validation import ModelLimits
from hasten.kernels.backend import KVPlan
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity, KVGroupSpec

from tests.helpers.mock_model import MockExecutor

FULL = KVGroupSpec(num_layers=1, num_kv_heads=1, head_size=8, dtype=DType.F32)
VOCAB_SIZE = 64


@dataclass(slots=True)
class EngineSize:
    """How large an engine is, as far as tests vary it. `num_blocks` counts the null block."""

    num_blocks: int = 257
    block_size: int = 8
    max_model_len: int = 256
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 64
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    groups: tuple[KVGroupSpec, ...] = (FULL,)

    @property
    def kv_plan(self) -> KVPlan:
        return KVPlan(self.groups, (self.num_blocks,) * len(self.groups), self.block_size)

    @property
    def capacity(self) -> Capacity:
        return Capacity(
            max_tokens=self.max_num_batched_tokens,
            max_requests=self.max_num_seqs,
            max_logit_rows=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )


def make_parts(
    size: EngineSize,
    executor: Executor,
    vocab_size: int = VOCAB_SIZE,
    speculator: Speculator | None = None,
    budget: StepBudget | None = None,
) -> EngineParts:
    """The parts of an engine over `executor`."""
    blocks = BlockManager(
        size.kv_plan,
        num_table_rows=size.max_num_seqs,
        max_model_len=size.max_model_len,
        max_chunk=size.max_num_batched_tokens,
        enable_prefix_caching=size.enable_prefix_caching,
    )
    options = SchedulerOptions(
        max_num_seqs=size.max_num_seqs, max_num_batched_tokens=size.max_num_batched_tokens
    )
    return EngineParts(
        scheduler=Scheduler(options, blocks, queue_policy(size.policy), budget),
        blocks=blocks,
        executor=executor,
        capacity=size.capacity,
        limits=ModelLimits(
            vocab_size,
            size.max_model_len,
            frozenset() if speculator is None else speculator.methods,
        ),
        ready=EngineReady(
            model_name="mock",
            eos_token_ids=(),
            generation_defaults={},
            max_model_len=size.max_model_len,
            vocab_size=vocab_size,
            num_kv_tokens=(size.num_blocks - 1) * size.block_size,
            config_hash="mock",
        ),
        speculator=speculator,
    )


def mock_engine(size: EngineSize | None = None, speculator: Speculator | None = None) -> Engine:
    """An engine over the mock model."""
    size = size or EngineSize()
    executor = MockExecutor(size.kv_plan, VOCAB_SIZE)
    return Engine(make_parts(size, executor, VOCAB_SIZE, speculator))


def ask(
    request_id: str, prompt: Sequence[int], params: GenerationParams, priority: int = 0
) -> AddRequest:
    return AddRequest(
        request_id=request_id, prompt_token_ids=list(prompt), params=params, priority=priority
    )


@dataclass(slots=True)
class Answer:
    """Everything that was said about one sample."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0

    def take(self, output: TokenOutput) -> None:
        assert self.finish_reason is None, "an output after the last one"
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or []
        if output.prompt_logprobs is not None:
            assert self.prompt_logprobs is None, "prompt scores delivered twice"
            self.prompt_logprobs = output.prompt_logprobs
        self.finish_reason = output.finish_reason
        self.stop_token_id = output.stop_token_id
        self.num_cached_tokens = output.num_cached_tokens

    @property
    def text(self) -> tuple[object, ...]:
        """What must not depend on anything but the request."""
        return (
            tuple(self.token_ids),
            tuple(_key(entry) for entry in self.logprobs),
            None if self.prompt_logprobs is None else tuple(map(_key, self.prompt_logprobs)),
            self.finish_reason,
            self.stop_token_id,
        )


def _key(entry: PositionLogprobs | None) -> tuple[object, ...] | None:
    if entry is None:
        return None
    return (entry.token_logprob, tuple(entry.top_token_ids), tuple(entry.top_logprobs))


Answers = dict[tuple[str, int], Answer]


def collect(answers: Answers, outputs: Iterable[TokenOutput]) -> None:
    for output in outputs:
        answers.setdefault((output.request_id, output.sample_idx), Answer()).take(output)


def finish_all(engine: Engine, answers: Answers, max_steps: int = 100_000) -> None:
    """Step until nothing is open."""
    for _ in range(max_steps):
        if not engine.has_work:
            return
        collect(answers, engine.step())
    raise AssertionError(f"not finished after {max_steps} steps")


def run_requests(engine: Engine, requests: Sequence[AddRequest]) -> Answers:
    """Add all at once and run to the end."""
    answers: Answers = {}
    for request in requests:
        refused = engine.add_request(request)
        assert refused is None, refused
    finish_all(engine, answers)
    return answers


def expect_short_outputs(engine: Engine, count: int = 100) -> None:
    """Show the engine outputs of one token, so that it lets more in than will fit: it preempts."""
    params = GenerationParams(max_tokens=9, seed=0, allowed_token_ids=(1,), stop_token_ids=(1,))
    run_requests(engine, [ask(f"short{i}", [1], params) for i in range(count)])


def run_alone(engine: Engine, requests: Sequence[AddRequest]) -> Answers:
    """One after the other."""
    answers: Answers = {}
    for request in requests:
        answers |= run_requests(engine, [request])
    return answers
