"""Models that draft beside the one that is served: what an engine needs to hold and run one.

A drafter's layers keep their K and V in KV groups of their own, behind the target's, out of the
same memory: each of its blocks belongs to the same tokens as the target's, is shared, copied and
freed with them, and whoever drafts knows which of them it has filled (`hasten.spec`).

    KV groups    [ target's ... | draft model's ... | EAGLE head's ]

An EAGLE head reads the target's hidden states too: `FeatureStore` keeps those of every cached
token, by slot, so that the head can fill its K and V whenever it is asked to draft.

Not here: what is drafted and when (`hasten.spec`). Exercised by `pytest tests/cpu/spec`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from hasten.core.latency import StepShape
from hasten.core.loading.eagle import Target, load_eagle
from hasten.core.loading.locate import shipped_head, user_path
from hasten.core.loading.model import load_model
from hasten.core.models.decoder import feature_tap
from hasten.core.models.eagle import FEATURES, HIDDEN, build_eagle_program
from hasten.core.options import ConfigurationError
from hasten.core.runner import dummy_batch, measuring_clock
from hasten.core.step_profile import profile
from hasten.kernels.backend import KVPlan
from hasten.kernels.chains import Chain, HeadInputs, RunsChains, SinglePasses
from hasten.kernels.ops import PagedAttention, RopeStoreKV
from hasten.kernels.program import Capacity, KVLayer, Program
from ml_dtypes import bfloat16

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hasten.core.latency import Chunk, StepTimeModel
    from hasten.core.loading import LoadedModel
    from hasten.core.options import EngineOptions
    from hasten.kernels.backend import Backend, Executable, KVCache
    from hasten.kernels.chains import DraftStep
    from hasten.kernels.dtypes import DType
    from hasten.kernels.ops import Op
    from hasten.kernels.program import WeightName
    from hasten.kernels.step import F32, I32, StepBatch
    from hasten.kernels.weights import Weight

MAX_PASS_TOKENS = 256
"""The most tokens of one drafting pass: a drafter that is behind catches up in such chunks."""
PROFILE_BUDGET_S = 0.15
FEATURE_BYTES = 2
"""Features are kept in bf16."""
LEAST_SHARED = 0.5
"""Confidence in an improbable token that was chosen with the target's own noise."""


@dataclass(frozen=True, slots=True)
class DrafterModel:
    """A drafter as it is loaded: its program over its own KV groups.

    It drafts at positions below `max_len`. `draft_ids` translates what it chooses (None: nothing
    to translate). An EAGLE head reads `feature_layers` of the target.
    """

    name: str
    program: Program
    weights: Mapping[WeightName, Weight]
    max_len: int
    draft_ids: I32 | None = None
    feature_layers: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(weight.num_bytes for weight in self.weights.values())


def load_drafters(
    options: EngineOptions, target: LoadedModel, dtype: DType, kv_dtype: DType
) -> tuple[DrafterModel, ...]:
    """Those that the options ask for.

    Raises LoadError, and ConfigurationError for a draft model of another vocabulary.
    """
    speculation = options.speculation
    found = []
    if "draft" in speculation.methods:
        assert speculation.spec_draft_model is not None
        max_len = options.model.max_model_len
        found.append(_load_draft(speculation.spec_draft_model, target, dtype, kv_dtype, max_len))
    if "eagle" in speculation.methods:
        head = load_eagle(_head_folder(options), Target(target.config, target.weights))
        found.append(
            DrafterModel(
                "eagle",
                build_eagle_program(head.config, dtype, kv_dtype),
                head.weights,
                max_len=head.config.layer.max_position_embeddings,
                draft_ids=head.draft_ids,
                feature_layers=head.config.feature_layers,
            )
        )
    return tuple(found)


def _head_folder(options: EngineOptions) -> Path:
    """The head given, or the one that is shipped. Raises ConfigurationError without either."""
    given = options.speculation.spec_eagle_head
    if given is not None:
        return user_path(given)
    shipped = shipped_head(options.model.model)
    if shipped is None:
        raise ConfigurationError(
            "--spec-method eagle needs an --spec-eagle-head: none is shipped for "
            f"{options.model.model}"
        )
    return shipped


def _load_draft(
    reference: str,
    target: LoadedModel,
    dtype: DType,
    kv_dtype: DType,
    max_model_len: int | None,
) -> DrafterModel:
    model = load_model(reference, max_model_len=max_model_len)
    if model.config.vocab_size != target.config.vocab_size:
        raise ConfigurationError(
            f"--spec-draft-model {reference}: its vocabulary has {model.config.vocab_size} tokens, "
            f"the model's {target.config.vocab_size}: it cannot draft for it"
        )
    program = model.build_program(dtype, kv_dtype)
    return DrafterModel("draft", program, model.weights, model.config.max_position_embeddings)


def join_kv_groups(target: Program, drafters: Sequence[DrafterModel]) -> Program:
    """The target's program over a cache that has the drafters' groups as well.

    A drafter may be behind where a window has moved on already, so its groups keep everything.
    """
    groups = target.kv_groups
    for drafter in drafters:
        groups += tuple(replace(spec, window=None) for spec in drafter.program.kv_groups)
    return replace(target, kv_groups=groups)


class FeatureStore:
    """The target's hidden states of every cached token, by slot of one KV group: bf16."""

    def __init__(self, layers: Sequence[int], width: int, plan: KVPlan, group_id: int) -> None:
        self.taps = [feature_tap(layer) for layer in layers]
        self.group_id = group_id
        self._width = width
        self._block_size = plan.block_size
        num_slots = plan.num_blocks[group_id] * plan.block_size
        self.rows = np.zeros((num_slots, len(self.taps) * width), bfloat16)

    def take(self, batch: StepBatch, executable: Executable) -> None:
        """Keep those of the step that was just computed."""
        group, size = batch.groups[self.group_id], self._block_size
        for source, destination in group.block_copies.tolist():
            self.rows[destination * size :][:size] = self.rows[source * size :][:size]
        for i, tap in enumerate(self.taps):
            columns = slice(i * self._width, (i + 1) * self._width)
            self.rows[group.slot_mapping, columns] = executable.tap(tap)


@dataclass(slots=True)
class Drafter:
    """A drafter compiled over the engine's KV cache; `group_ids` are its groups there.

    `step_times` says what its passes take, as `run_chain` has seen them, which adds its time to
    `seconds`.
    """

    model: DrafterModel
    group_ids: range
    kv_plan: KVPlan
    capacity: Capacity
    executable: Executable
    passes: RunsChains
    step_times: StepTimeModel
    features: FeatureStore | None = None
    busy_clock: Callable[[], float] = perf_counter
    seconds: float = 0.0

    def run_chain(
        self,
        step: DraftStep,
        shape: StepShape,
        num_passes: int,
        least_survival: float,
        survivals: F32,
    ) -> tuple[I32, F32]:
        """Passes as `RunsChains.run_chain`; `shape` is what the first one costs by."""
        begin, busy = perf_counter(), self.busy_clock()
        token_ids, confidences = self.passes.run_chain(step, num_passes, least_survival, survivals)
        busy_s, seconds = self.busy_clock() - busy, perf_counter() - begin
        self.seconds += seconds
        share = 1.0
        if len(token_ids) > 1:
            later = StepShape(
                num_tokens=len(survivals),
                num_logit_rows=len(survivals),
                kv_tokens_read=shape.kv_tokens_read,
                query_key_pairs=shape.kv_tokens_read,
                num_requests=len(survivals),
            )
            first_s = self.step_times.step_time(shape)
            later_s = (len(token_ids) - 1) * self.step_times.step_time(later)
            share = first_s / (first_s + later_s)
        self.step_times.observe(shape, share * seconds, share * busy_s)
        return token_ids, confidences


def compile_drafters(
    models: Sequence[DrafterModel],
    backend: Backend,
    kv_cache: KVCache,
    num_target_groups: int,
    capacity: Capacity,
    feature_width: int,
) -> tuple[Drafter, ...]:
    """Bind every drafter to its groups of `kv_cache`, and time its passes.

    `capacity` is the target's. Raises UnsupportedOpError.
    """
    drafters = []
    first = num_target_groups
    for model in models:
        group_ids = range(first, first + len(model.program.kv_groups))
        first = group_ids.stop
        drafters.append(
            _compile(model, backend, kv_cache, group_ids, _pass_capacity(capacity), feature_width)
        )
    return tuple(drafters)


def _pass_capacity(target: Capacity) -> Capacity:
    return Capacity(
        max_tokens=MAX_PASS_TOKENS + target.max_requests,
        max_requests=target.max_requests,
        max_logit_rows=target.max_requests,
        max_model_len=target.max_model_len,
    )


def _compile(
    model: DrafterModel,
    backend: Backend,
    kv_cache: KVCache,
    group_ids: range,
    capacity: Capacity,
    feature_width: int,
) -> Drafter:
    plan = kv_cache.plan
    program = _over_groups(model.program, plan, group_ids.start)
    executable = backend.compile(program, model.weights, kv_cache, capacity)

    clock = measuring_clock(backend)

    def measure(chunks: Sequence[Chunk]) -> float:
        batch = dummy_batch(chunks, plan, capacity.max_model_len)
        begin = clock()
        executable.run(batch)
        return clock() - begin

    step_times = profile(measure, capacity, PROFILE_BUDGET_S, backend.num_warm_up_runs)
    features = head = None
    if model.feature_layers:
        features = FeatureStore(model.feature_layers, feature_width, plan, group_ids.start)
        head = HeadInputs(features.rows, FEATURES, HIDDEN, program.inputs[HIDDEN].width)
    passes = (
        executable
        if isinstance(executable, RunsChains)
        else SinglePasses(executable, plan.block_size)
    )
    passes.bind_chain(Chain(group_ids, LEAST_SHARED, model.draft_ids, head))
    return Drafter(
        model, group_ids, plan, capacity, executable, passes, step_times, features, clock
    )


def _over_groups(program: Program, plan: KVPlan, first: int) -> Program:
    """The program with its groups at their place among all."""
    ops = [_moved(op, first) for op in program.ops]
    return replace(program, kv_groups=plan.groups, ops=ops)


def _moved(op: Op, first: int) -> Op:
    if not isinstance(op, RopeStoreKV | PagedAttention):
        return op
    return replace(op, kv=KVLayer(first + op.kv.group_id, op.kv.layer_idx))
