"""From options to an engine that can take requests: load, plan, compile, profile.

Each phase is timed, and the start-up report says what every byte and second went to. What cannot
be honoured is refused here, by the name of its flag, before any request arrives. Exercised by
`pytest tests/cpu/engine/test_build.py`.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.blocks import BlockManager
from hasten.core.drafter import FEATURE_BYTES, compile_drafters, join_kv_groups, load_drafters
from hasten.core.engine import Engine, EngineParts
from hasten.core.host import available_memory_bytes, release_free_memory
from hasten.core.latency import FirstTokenBudget, ItlBudget, StepTimeModel
from hasten.core.loading import load_model
from hasten.core.loading.cache import cache_folder
from hasten.core.memory import (
    DEFAULT_KV_CAP_BYTES,
    GroupSize,
    MemoryDemand,
    MemoryPlan,
    activation_bytes,
    plan_memory,
)
from hasten.core.messages import EngineReady
from hasten.core.models.kv_probe import NUM_PROBE_TOKENS, probe_kv
from hasten.core.options import ConfigurationError
from hasten.core.overload import Overload, QueueLimits
from hasten.core.policies import queue_policy
from hasten.core.pooling import HIDDEN, Pooler, with_final_hidden
from hasten.core.prefix_hash import root_hash
from hasten.core.runner import InProcessExecutor, measuring_clock
from hasten.core.scheduler import Scheduler
from hasten.core.step_profile import profile
from hasten.core.validation import ModelLimits
from hasten.core.wait import WaitForecast
from hasten.kernels.backend import (
    KeptWeights,
    KVPlan,
    OwnsMemory,
    UnsupportedOpError,
    available_backends,
    first_refusal,
    get_backend,
)
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Capacity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hasten.core.drafter import Drafter, DrafterModel
    from hasten.core.loading import LoadedModel
    from hasten.core.models import KVFormat
    from hasten.core.options import EngineOptions, ExecutionOptions, SchedulerOptions
    from hasten.core.protocols import (
        Executor,
        GrammarsFactory,
        SpeculatorFactory,
    )
    from hasten.kernels.backend import Backend
    from hasten.kernels.program import Program

logger = logging.getLogger(__name__)

KV_DTYPES = {
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "fp8": DType.FP8_E4M3,
    "fp8_e4m3": DType.FP8_E4M3,
}
PROFILE_BUDGET_S = 0.8
MIN_LOGIT_ROWS = 64
"""The head runs in slices of at least so many rows, where a step has them."""


@dataclass(slots=True)
class Phases:
    """Seconds that each phase of the start took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        yield
        self.seconds[name] = perf_counter() - begin

    def line(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        return f"started in   {sum(self.seconds.values()):.2f} s ({parts})"


def make_backend(execution: ExecutionOptions, kernels: str | None = None) -> Backend:
    """The backend that `execution` asks for, or of its options `kernels`. Raises ValueError."""
    return get_backend(
        kernels or execution.kernels,
        execution.num_threads,
        execution.cpu_activations,
        enforce_eager=execution.enforce_eager,
    )


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """A model on a backend, with every dtype settled: what an engine computes."""

    model: LoadedModel
    backend: Backend
    activation_dtype: DType
    kv_format: KVFormat
    program: Program
    linear_inputs: str = ""  # what integer weights are multiplied with, where a backend chooses
    notes: tuple[str, ...] = ()
    drafters: tuple[DrafterModel, ...] = ()

    @classmethod
    def resolve(cls, model: LoadedModel, backend: Backend, options: EngineOptions) -> ModelBinding:
        """Settle what `auto` means. Raises ConfigurationError for dtypes that do not exist here."""
        activations = _activation_dtype(options, backend)
        kv_dtype = _kv_dtype(options, backend, activations)
        kv_format = model.kv_format(kv_dtype)
        notes: tuple[str, ...] = ()
        if kv_dtype is DType.FP8_E4M3:
            kv_format, notes = _probe_fp8_cache(model, backend, activations)
        program = model.build_program(activations, kv_format)
        inputs = options.execution.cpu_activations if backend.name == "cpu" else ""
        return cls(model, backend, activations, kv_format, program, inputs, notes)

    @classmethod
    def load(cls, options: EngineOptions) -> ModelBinding:
        """The model that the options name, on the backend that they name.

        With `--kernels auto` that is the fastest that can run the model; a note says what could
        not. Raises ConfigurationError, LoadError and UnsupportedOpError.
        """
        model = load_model(
            options.model.model,
            quantization=options.model.quantization,
            quantize_lm_head=options.model.quantize_lm_head,
            max_model_len=options.model.max_model_len,
            model_impl=options.model.model_impl,
        )
        kept = KeptWeights(model.weights, cache_folder() / "packed" / model.content_hash)
        model = replace(model, weights=kept)
        execution = options.execution
        kernels = execution.kernels
        notes: list[str] = []
        for name in available_backends() if kernels == "auto" else (kernels,):
            backend = make_backend(execution, name)
            binding = cls.resolve(model, backend, options)
            reason = first_refusal(backend, binding.program.ops, model.weights)
            if reason is None:
                return replace(binding, notes=(*notes, *binding.notes)).with_drafters(options)
            notes.append(f"kernels {name} cannot run this model: {reason}")
        raise UnsupportedOpError("; ".join(notes))

    def with_drafters(self, options: EngineOptions) -> ModelBinding:
        """This, with the drafters that the options ask for and what they need of the model.

        Raises ConfigurationError and LoadError.
        """
        kv_dtype = _plain_kv_dtype(self.kv_format, self.activation_dtype)
        drafters = load_drafters(options, self.model, self.activation_dtype, kv_dtype)
        if not drafters:
            return self
        layers = {layer for drafter in drafters for layer in drafter.feature_layers}
        program = self.model.build_program(self.activation_dtype, self.kv_format, layers)
        return replace(self, program=join_kv_groups(program, drafters), drafters=drafters)

    @property
    def num_own_groups(self) -> int:
        """KV groups of the model itself; those of the drafters come behind."""
        num_drafters = sum(len(drafter.program.kv_groups) for drafter in self.drafters)
        return len(self.program.kv_groups) - num_drafters

    @property
    def has_idle_processor(self) -> bool:
        """Whether steps leave a processor of the host to others."""
        return self.backend.num_busy_processors < len(os.sched_getaffinity(0))

    def identity(self) -> dict[str, str]:
        """Everything about it that may change a result."""
        return {
            "weights": self.model.content_hash,
            "kernels": self.backend.name,
            "activations": self.activation_dtype.value,
            "kv_cache": self.kv_format.key,
            "linear_inputs": self.linear_inputs,
        }


def build_engine(
    options: EngineOptions,
    report: Callable[[str], None] = logger.info,
    make_speculator: SpeculatorFactory | None = None,
    make_grammars: GrammarsFactory | None = None,
) -> Engine:
    """An engine for `options`; `report` gets the start-up report, line by line.

    Speculation needs a `make_speculator` (see `hasten.spec`), structured output `make_grammars`
    (see `hasten.api.structured`).

    Raises ConfigurationError for options that cannot be honoured, LoadError for a model that
    cannot be read, UnsupportedOpError for one that the kernels cannot run.
    """
    _refuse_unsupported(options)
    phases = Phases()
    with phases.timed("load"):
        binding = ModelBinding.load(options)
    if options.model.enable_embeddings:
        binding = replace(binding, program=with_final_hidden(binding.program))
    plan = settle_memory(binding, options)
    capacity = step_capacity(options, plan.max_model_len)
    with phases.timed("compile"):
        kv_plan = KVPlan(binding.program.kv_groups, plan.num_blocks, plan.block_size)
        executor = InProcessExecutor(
            binding.backend, binding.program, binding.model.weights, kv_plan, capacity
        )
    with phases.timed("profile"):
        num_warm_up_runs = binding.backend.num_warm_up_runs
        step_times = profile(executor.measure, capacity, PROFILE_BUDGET_S, num_warm_up_runs)
    with phases.timed("drafters"):
        drafters = add_drafters(binding, executor, capacity)
    parts = assemble(binding, executor, plan, options, step_times, make_speculator, drafters)
    grammars = None
    if make_grammars is not None:
        grammars = make_grammars(options, binding.has_idle_processor)
    parts = replace(parts, grammars=grammars, pooler=_pooler(binding, executor))
    report(f"{parts.ready.model_name}: {describe(binding)}")
    for line in (*binding.notes, *plan.lines(), savings(binding, plan.block_size), phases.line()):
        report(line)
    engine = Engine(parts)
    del binding  # and with it the weights, from which the executables made their own
    # What exists now lives as long as the engine: collections, which stop every stream for as
    # long as they take, need not walk over it.
    gc.collect()
    gc.freeze()
    release_free_memory()
    return engine


def _pooler(binding: ModelBinding, executor: InProcessExecutor) -> Pooler | None:
    """What reads the hidden states that the program taps, if it does."""
    tapped = binding.program.taps.get(HIDDEN)
    if tapped is None:
        return None
    pooler = Pooler(tapped.width)
    executor.keep_features(pooler)
    return pooler


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
            executor.keep_features(drafter.features)
    return drafters


def settle_memory(binding: ModelBinding, options: EngineOptions) -> MemoryPlan:
    """The memory plan of this model under these options. Raises ConfigurationError."""
    cache, scheduling = options.cache, options.scheduler
    max_len = binding.model.config.max_position_embeddings
    device = _device_needs(binding, step_capacity(options, options.model.max_model_len or max_len))
    return plan_memory(
        MemoryDemand(
            weights_bytes=device.weights_bytes,
            activation_bytes=device.work_bytes,
            available_bytes=device.free_bytes,
            utilization=cache.gpu_memory_utilization,
            kv_cache_memory_bytes=cache.kv_cache_memory_bytes,
            groups=tuple(_group_sizes(binding, cache.block_size)),
            block_size=cache.block_size,
            max_num_seqs=scheduling.max_num_seqs,
            max_num_batched_tokens=scheduling.max_num_batched_tokens,
            model_max_len=max_len,
            max_model_len=options.model.max_model_len,
            kv_cap_bytes=device.kv_cap_bytes,
            graph_bytes=device.graph_bytes,
        )
    )


@dataclass(frozen=True, slots=True)
class _DeviceNeeds:
    """What there is of the memory that a model computes in, and what computing takes of it."""

    free_bytes: int
    weights_bytes: int
    work_bytes: int
    graph_bytes: int
    kv_cap_bytes: int | None


def _device_needs(binding: ModelBinding, capacity: Capacity) -> _DeviceNeeds:
    backend = binding.backend
    free_bytes = backend.free_memory_bytes() if isinstance(backend, OwnsMemory) else None
    if not isinstance(backend, OwnsMemory) or free_bytes is None:
        return _DeviceNeeds(
            available_memory_bytes(),
            binding.model.num_bytes + sum(drafter.num_bytes for drafter in binding.drafters),
            activation_bytes(binding.program, capacity),
            graph_bytes=0,
            kv_cap_bytes=DEFAULT_KV_CAP_BYTES,
        )
    programs = [(binding.program, binding.model.weights)]
    programs += [(drafter.program, drafter.weights) for drafter in binding.drafters]
    bound = [backend.bound_bytes(program, weights, capacity) for program, weights in programs]
    return _DeviceNeeds(
        free_bytes,
        sum(each.weights for each in bound),
        sum(each.work for each in bound),
        sum(backend.graph_bytes(program, capacity) for program, _ in programs),
        kv_cap_bytes=None,
    )


def _group_sizes(binding: ModelBinding, block_size: int) -> Iterator[GroupSize]:
    """Blocks of each KV group; features are counted with the groups of who reads them."""
    extra_bytes = [0] * binding.num_own_groups
    for drafter in binding.drafters:
        width = len(drafter.feature_layers) * binding.model.config.hidden_size
        others = [0] * (len(drafter.program.kv_groups) - 1)
        extra_bytes += [width * FEATURE_BYTES * block_size, *others]
    for spec, extra in zip(binding.program.kv_groups, extra_bytes, strict=True):
        block_bytes = binding.backend.kv_block_bytes(spec, block_size)
        yield GroupSize(block_bytes + extra, spec.window)


def step_capacity(options: EngineOptions, max_model_len: int) -> Capacity:
    """The largest step that the scheduler may plan."""
    scheduling = options.scheduler
    most_rows = max(scheduling.max_num_seqs, MIN_LOGIT_ROWS)
    return Capacity(
        max_tokens=scheduling.max_num_batched_tokens,
        max_requests=scheduling.max_num_seqs,
        max_logit_rows=min(most_rows, scheduling.max_num_batched_tokens),
        max_model_len=max_model_len,
    )


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
    scheduling = options.scheduler
    identity = binding.identity()
    blocks = BlockManager(
        KVPlan(binding.program.kv_groups, plan.num_blocks, plan.block_size),
        num_table_rows=scheduling.max_num_seqs,
        max_model_len=plan.max_model_len,
        max_chunk=scheduling.max_num_batched_tokens,
        cache_root=root_hash(identity["weights"].encode(), identity["kv_cache"].encode()),
        enable_prefix_caching=options.cache.enable_prefix_caching,
    )
    scheduler = Scheduler(
        scheduling,
        blocks,
        queue_policy(scheduling.scheduling_policy),
        budget=ItlBudget(step_times, scheduling.step_limit_s, plan.block_size),
        prompt_budget=ItlBudget(step_times, scheduling.max_stall_ms / 1000, plan.block_size),
        first_tokens=FirstTokenBudget(step_times, plan.block_size),
    )
    speculator = None
    if make_speculator is not None:
        speculator = make_speculator(options, step_times, drafters, blocks)
    elif options.speculation.spec_method != "off":
        raise ConfigurationError(
            f"--spec-method {options.speculation.spec_method}: "
            "this engine is built without speculation"
        )
    spec_methods = frozenset[str]() if speculator is None else speculator.methods
    return EngineParts(
        scheduler=scheduler,
        blocks=blocks,
        executor=executor,
        capacity=step_capacity(options, plan.max_model_len),
        limits=ModelLimits(
            binding.program.vocab_size,
            plan.max_model_len,
            spec_methods,
            embeds=HIDDEN in binding.program.taps,
        ),
        ready=_ready(binding, plan, options),
        observer=step_times,
        busy_clock=measuring_clock(binding.backend),
        speculator=speculator,
        overload=_overload(scheduling, scheduler, step_times),
    )


def _overload(
    options: SchedulerOptions, scheduler: Scheduler, step_times: StepTimeModel
) -> Overload:
    wait_ms = options.max_queue_wait_ms
    limits = QueueLimits(options.max_queue_len, None if wait_ms is None else wait_ms / 1000)
    forecast = WaitForecast(scheduler, step_times, options.max_num_batched_tokens)
    return Overload(scheduler, limits, forecast)


def describe(binding: ModelBinding) -> str:
    """One line on what computes."""
    return (
        f"kernels {binding.backend.name}, activations {binding.activation_dtype.value}, "
        f"KV cache {_kv_names(binding.kv_format)}"
    )


def savings(binding: ModelBinding, block_size: int) -> str:
    """One line on what weights and cache take of what they would in bf16."""
    own = binding.program.kv_groups[: binding.num_own_groups]
    kv_bytes, bf16_bytes = (
        sum(binding.backend.kv_block_bytes(spec, block_size) for spec in specs)
        for specs in (own, [replace(spec, dtype=DType.BF16) for spec in own])
    )
    return (
        f"of bf16      weights take {binding.model.share_of_bf16:.1%} of the bytes, "
        f"a token's KV {kv_bytes / bf16_bytes:.1%}"
    )


def _kv_names(kv_format: KVFormat) -> str:
    """The dtype, or each of them with the number of layers that it has."""
    counts = Counter(kv_format.dtypes)
    if len(counts) == 1:
        return kv_format.dtypes[0].value
    return ", ".join(f"{dtype.value} in {count} layers" for dtype, count in counts.items())


def config_hash(binding: ModelBinding, options: EngineOptions) -> str:
    """Names everything that can change an answer: weights, kernels, dtypes, text handling."""
    identity = binding.identity() | {
        "tokenizer": _file_identity(options.model.tokenizer),
        "chat_template": _file_identity(options.model.chat_template),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _file_identity(path: str | None) -> str:
    """A file's contents; for a directory or the model's own (None), its name."""
    if path is None or not Path(path).is_file():
        return path or ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _ready(binding: ModelBinding, plan: MemoryPlan, options: EngineOptions) -> EngineReady:
    model, tapped = binding.model, binding.program.taps.get(HIDDEN)
    return EngineReady(
        model_name=options.model.served_model_name or model.name,
        eos_token_ids=model.eos_token_ids,
        generation_defaults=dict(model.generation_defaults),
        max_model_len=plan.max_model_len,
        vocab_size=binding.program.vocab_size,
        num_kv_tokens=plan.num_kv_tokens,
        config_hash=config_hash(binding, options),
        embedding_width=tapped.width if tapped is not None else None,
        identity=binding.identity(),
    )


def _refuse_unsupported(options: EngineOptions) -> None:
    """Options that exist, and that nothing here implements yet."""
    if options.execution.tensor_parallel_size != 1:
        raise ConfigurationError(
            f"--tensor-parallel-size {options.execution.tensor_parallel_size} is not supported yet"
        )


def _plain_kv_dtype(kv_format: KVFormat, activations: DType) -> DType:
    """What drafters keep: as the model, but nothing that has to be probed."""
    dtypes = set(kv_format.dtypes)
    return activations if DType.FP8_E4M3 in dtypes else kv_format.dtypes[0]


def _activation_dtype(options: EngineOptions, backend: Backend) -> DType:
    if options.model.dtype == "auto":
        return backend.activation_dtypes[0]
    wanted = DType(options.model.dtype)
    if wanted not in backend.activation_dtypes:
        supported = ", ".join(dtype.value for dtype in backend.activation_dtypes)
        raise ConfigurationError(
            f"--dtype {wanted.value} is not supported by kernels {backend.name}; "
            f"supported: {supported}"
        )
    return wanted


def _kv_dtype(options: EngineOptions, backend: Backend, activations: DType) -> DType:
    name = options.cache.kv_cache_dtype
    wanted = activations if name == "auto" else KV_DTYPES.get(name)
    if wanted is None or wanted not in backend.kv_dtypes:
        supported = [key for key, dtype in KV_DTYPES.items() if dtype in backend.kv_dtypes]
        raise ConfigurationError(
            f"--kv-cache-dtype {name} is not supported by kernels {backend.name}; "
            f"supported: auto, {', '.join(supported)}"
        )
    return wanted


def _probe_fp8_cache(
    model: LoadedModel, backend: Backend, activations: DType
) -> tuple[KVFormat, tuple[str, ...]]:
    """An fp8 cache for the layers that bear it, a plain one for the others, and what to report.

    Probed on pseudo-random tokens: `core` knows no tokeniser, and the errors are those of text
    (docs/quantisation.md).
    """
    wanted = model.kv_format(DType.FP8_E4M3)
    program = model.build_program(activations, activations)
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, program.vocab_size, NUM_PROBE_TOKENS).tolist()
    probe = probe_kv(program, model.weights, backend, token_ids, wanted)
    return probe.format(wanted, activations), tuple(probe.lines())
