"""Engines whose drafter is handed in: any two models over one cache, without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hasten.core.assembly import add_drafters, assemble, make_executor
from hasten.core.binding import ModelBinding
from hasten.core.demand import settle_memory, step_capacity
from hasten.core.drafter import Drafter, DrafterModel, join_kv_groups
from hasten.core.engine import Engine
from hasten.core.latency import StepShape, StepTimeModel
from hasten.core.loading import LoadedModel
from hasten.core.options import (
    CacheOptions,
    EngineOptions,
    ModelOptions,
    SchedulerOptions,
    SpeculationOptions,
)
from hasten.kernels.backend import get_backend
from hasten.kernels.dtypes import DType
from hasten.spec import make_speculator

MAX_LEN = 320


def draft_model(model: LoadedModel, dtype: DType, max_len: int = MAX_LEN) -> DrafterModel:
    return DrafterModel("draft", model.build_program(dtype, dtype), model.weights, max_len)


def speculation(method: str, depth: str = "auto") -> SpeculationOptions:
    """As the command line would make it, with a drafter for those that need one."""
    return SpeculationOptions(
        method,
        depth,
        spec_draft_model="given" if method == "draft" else None,
        spec_eagle_head="given" if method == "eagle" else None,
    )


@dataclass(slots=True)
class DraftingEngine:
    """An engine and the drafters in it."""

    engine: Engine
    drafters: tuple[Drafter, ...]

    @classmethod
    def make(
        cls,
        target: LoadedModel,
        models: Sequence[DrafterModel],
        options: SpeculationOptions,
        kernels: str,
        dtype: DType,
        *,
        num_kv_bytes: int = 8 << 20,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
    ) -> DraftingEngine:
        """`num_kv_bytes` for the target and the drafters together.

        Steps are taken to cost 10 s, a hundredth of it for each more row, and a drafting pass 1 s.
        """
        engine_options = EngineOptions(
            model=ModelOptions(max_model_len=MAX_LEN),
            cache=CacheOptions(
                kv_cache_memory_bytes=num_kv_bytes, enable_prefix_caching=enable_prefix_caching
            ),
            scheduler=SchedulerOptions(
                max_num_seqs=16,
                max_num_batched_tokens=max_num_batched_tokens,
                max_stall_ms=1e9,
            ),
            speculation=options,
        )
        binding = binding_of(target, models, kernels, dtype)
        plan = settle_memory(binding, engine_options)
        capacity = step_capacity(engine_options, plan.max_model_len)
        executor = make_executor(binding, plan, capacity)
        drafters = add_drafters(binding, executor, capacity)
        for drafter in drafters:
            drafter.step_times = slow_steps(1.0, 0.01)
        parts = assemble(
            binding,
            executor,
            plan,
            engine_options,
            slow_steps(10.0, 0.1),
            make_speculator,
            drafters,
        )
        return cls(Engine(parts), drafters)


def binding_of(
    target: LoadedModel, models: Sequence[DrafterModel], kernels: str, dtype: DType
) -> ModelBinding:
    layers = {layer for model in models for layer in model.feature_layers}
    program = target.build_program(dtype, dtype, layers)
    return ModelBinding(
        target,
        get_backend(kernels, 1),
        dtype,
        target.kv_format(dtype),
        join_kv_groups(program, models),
        drafters=tuple(models),
    )


class FixedTimes(StepTimeModel):
    """Learns nothing, so that what is decided does not depend on the machine."""

    def observe(self, shape: StepShape, seconds: float, busy_s: float | None = None) -> None:
        """Ignore it."""


def slow_steps(first_row_s: float, more_row_s: float) -> FixedTimes:
    """Seconds long, so that what tests really take is nothing beside it."""
    model = FixedTimes()
    model.body.set(1, first_row_s)
    model.body.set(101, first_row_s + 100 * more_row_s)
    return model


def acceptance(engine: DraftingEngine) -> float:
    """Acceptance so far."""
    stats = engine.engine.stats()
    return stats.num_accepted_draft_tokens / max(stats.num_draft_tokens, 1)


def plain(model: LoadedModel, kernels: str, dtype: DType) -> Engine:
    """The same engine without speculation."""
    return DraftingEngine.make(model, (), speculation("off"), kernels, dtype).engine


def nudged(model: LoadedModel, by: float, seed: int = 1) -> LoadedModel:
    """Nearly the same model, which agrees with it most of the time."""
    import numpy as np
    from hasten.kernels.weights import DenseWeight

    rng = np.random.default_rng(seed)
    weights = {}
    for name, weight in model.weights.items():
        data = weight.dequantize()
        noise = rng.standard_normal(data.shape).astype(np.float32)
        scale = by * float(np.abs(data).mean())
        weights[name] = DenseWeight(data + scale * noise) if data.ndim == 2 else weight
    return replace(model, weights=weights)
