"""What a model on a backend demands of memory, and the plan that comes of it.

The arithmetic is `core.memory`'s; the sizes are asked of whoever knows them: of a backend with
memory of its own, what it has free and what it would bind there; of the host, what is available.
Exercised by `pytest tests/cpu/engine/test_build.py tests/cpu/triton/test_device_memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hasten.core.drafter import FEATURE_BYTES
from hasten.core.host import available_memory_bytes
from hasten.core.memory import (
    DEFAULT_KV_CAP_BYTES,
    GroupSize,
    MemoryDemand,
    activation_bytes,
    plan_memory,
)
from hasten.kernels.backend import OwnsMemory
from hasten.kernels.program import Capacity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.binding import ModelBinding
    from hasten.core.memory import MemoryPlan
    from hasten.core.options import EngineOptions

MIN_LOGIT_ROWS = 64
"""The head runs in slices of at least so many rows, where a step has them."""


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
