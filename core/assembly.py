"""The parts of an engine, made for a model on a backend and put together.

`make_executor` compiles the model, `add_drafters` and `add_pooler` hang on it what reads the hidden
states of its steps, and `assemble` adds those who plan the steps. Speculation comes from a factory
that is handed in; the order of it all is `core.build`'s. Exercised by
`pytest tests/cpu/engine tests/cpu/spec`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hasten.core.blocks import BlockManager
from hasten.core.demand import step_capacity
from hasten.core.drafter import compile_drafters
from hasten.core.latency import FirstTokenBudget, ItlBudget
from hasten.core.options import ConfigurationError
from hasten.core.overload import Overload, QueueLimits
from hasten.core.parts import EngineParts
from hasten.core.policies import queue_policy
from hasten.core.pooling import HIDDEN, Pooler
from hasten.core.prefix_hash import root_hash
from hasten.core.ready import ready_message
from hasten.core.runner import InProcessExecutor, measuring_clock
from hasten.core.scheduler import Scheduler
from hasten.core.validation import ModelLimits
from hasten.core.wait import WaitForecast
from hasten.kernels.backend import KVPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hasten.core.binding import ModelBinding
    from hasten.core.drafter import Drafter
    from hasten.core.latency import StepTimeModel
    from hasten.core.memory import MemoryPlan
    from hasten.core.options import EngineOptions, SchedulerOptions
    from hasten.core.protocols import Executor, Speculator, SpeculatorFactory
    from hasten.kernels.program import Capacity


def make_executor(binding: ModelBinding, plan: MemoryPlan, capacity: Capacity) -> InProcessExecutor:
    """The model compiled over a KV cache of its own. Raises UnsupportedOpError."""
    return InProcessExecutor(
        binding.backend,
        binding.program,
        binding.model.weights,
        _kv_plan(binding, plan),
        capacity,
    )


def add_drafters(
    binding: ModelBinding, executor: InProcessExecutor, capacity: Capacity
) -> tuple[Drafter, ...]:
    """The binding's drafters over the executor's KV cache, which keeps the features they read."""
    drafters = compile_drafters(
        binding.drafters,
        binding.backend,
        executor.kv_cache,
        binding.num_own_groups,
        capacity,
        binding.model.config.hidden_size,
    )
    for drafter in drafters:
        if drafter.features is not None:
            executor.keep_features_by_slot(drafter.features)
    return drafters


def add_pooler(binding: ModelBinding, executor: InProcessExecutor) -> Pooler | None:
    """What reads the hidden states that the program taps, if it does."""
    tapped = binding.program.taps.get(HIDDEN)
    if tapped is None:
        return None
    pooler = Pooler(tapped.width)
    executor.keep_features(pooler)
    return pooler


def assemble(
    binding: ModelBinding,
    executor: Executor,
    plan: MemoryPlan,
    options: EngineOptions,
    step_times: StepTimeModel,
    make_speculator: SpeculatorFactory | None = None,
    drafters: Sequence[Drafter] = (),
) -> EngineParts:
    """The parts of an engine that runs `executor` within `plan`.

    Raises ConfigurationError for speculation without a `make_speculator`.
    """
    blocks = _blocks(binding, plan, options)
    scheduler = _scheduler(options.scheduler, blocks, step_times, plan.block_size)
    speculator = None
    if make_speculator is not None:
        speculator = make_speculator(options, step_times, drafters, blocks)
    elif options.speculation.spec_method != "off":
        raise ConfigurationError(
            f"--spec-method {options.speculation.spec_method}: "
            "this engine is built without speculation"
        )
    return EngineParts(
        scheduler=scheduler,
        blocks=blocks,
        executor=executor,
        capacity=step_capacity(options, plan.max_model_len),
        limits=_limits(binding, plan, speculator),
        ready=ready_message(binding, plan, options),
        observer=step_times,
        busy_clock=measuring_clock(binding.backend),
        speculator=speculator,
        overload=_overload(options.scheduler, scheduler, step_times),
    )


def _kv_plan(binding: ModelBinding, plan: MemoryPlan) -> KVPlan:
    return KVPlan(binding.program.kv_groups, plan.num_blocks, plan.block_size)


def _blocks(binding: ModelBinding, plan: MemoryPlan, options: EngineOptions) -> BlockManager:
    scheduling, identity = options.scheduler, binding.identity()
    return BlockManager(
        _kv_plan(binding, plan),
        num_table_rows=scheduling.max_num_seqs,
        max_model_len=plan.max_model_len,
        max_chunk=scheduling.max_num_batched_tokens,
        cache_root=root_hash(identity["weights"].encode(), identity["kv_cache"].encode()),
        enable_prefix_caching=options.cache.enable_prefix_caching,
    )


def _scheduler(
    options: SchedulerOptions, blocks: BlockManager, step_times: StepTimeModel, block_size: int
) -> Scheduler:
    return Scheduler(
        options,
        blocks,
        queue_policy(options.scheduling_policy),
        budget=ItlBudget(step_times, options.step_limit_s, block_size, options.max_stall_s),
        prompt_budget=ItlBudget(step_times, options.prompt_limit_s, block_size),
        first_tokens=FirstTokenBudget(step_times, block_size),
    )


def _limits(binding: ModelBinding, plan: MemoryPlan, speculator: Speculator | None) -> ModelLimits:
    return ModelLimits(
        binding.program.vocab_size,
        plan.max_model_len,
        frozenset() if speculator is None else speculator.methods,
        embeds=HIDDEN in binding.program.taps,
    )


def _overload(
    options: SchedulerOptions, scheduler: Scheduler, step_times: StepTimeModel
) -> Overload:
    wait_ms = options.max_queue_wait_ms
    limits = QueueLimits(options.max_queue_len, None if wait_ms is None else wait_ms / 1000)
    forecast = WaitForecast(scheduler, step_times, options.max_num_batched_tokens)
    return Overload(scheduler, limits, forecast)
