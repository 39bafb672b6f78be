"""`ReferenceBackend`: the op table in torch, and compiling a program against it."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import torch
from hasten.kernels import foreign, ops
from hasten.kernels.backend import UnsupportedOpError, first_refusal
from hasten.kernels.dtypes import DType
from hasten.kernels.reference import (
    act_mul,
    add_scaled,
    combine_experts,
    embed,
    gather_rows,
    grouped_linear,
    input,  # noqa: A004 (named as its op)
    linear,
    norm_columns,
    paged_attention,
    rms_norm,
    rope_store_kv,
    route,
    sample,
    scale_logits,
    tap,
)
from hasten.kernels.reference import foreign as foreign_nodes
from hasten.kernels.reference.binding import Binder
from hasten.kernels.reference.executable import ReferenceExecutable
from hasten.kernels.reference.kv_cache import ReferenceKVCache, kv_token_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels.backend import KVCache, KVPlan
    from hasten.kernels.program import Capacity, KVGroupSpec, Program, WeightName
    from hasten.kernels.weights import Weight

_MODULES: dict[type[ops.Op], ModuleType] = {
    ops.Embed: embed,
    ops.RmsNorm: rms_norm,
    ops.NormColumns: norm_columns,
    ops.AddScaled: add_scaled,
    ops.Linear: linear,
    ops.RopeStoreKV: rope_store_kv,
    ops.PagedAttention: paged_attention,
    ops.ActMul: act_mul,
    ops.Route: route,
    ops.GroupedLinear: grouped_linear,
    ops.CombineExperts: combine_experts,
    ops.GatherRows: gather_rows,
    ops.ScaleLogits: scale_logits,
    ops.Tap: tap,
    ops.Input: input,
    foreign.ForeignBody: foreign_nodes,
    foreign.ForeignHead: foreign_nodes,
    ops.Sample: sample,
}


class ReferenceBackend:
    """Plain torch. `num_threads`, where given, is set for the whole process, as torch has it."""

    name = "reference"
    num_warm_up_runs = 0
    activation_dtypes = (DType.BF16, DType.F32)
    kv_dtypes = (DType.BF16, DType.F32, DType.FP8_E4M3)

    def __init__(self, num_threads: int | None = None, device: str = "cpu") -> None:
        self._device = torch.device(device)
        if num_threads is not None:
            torch.set_num_threads(num_threads)

    @property
    def num_busy_processors(self) -> int:
        return torch.get_num_threads()

    def supports(self, op: ops.Op, weights: Mapping[WeightName, Weight]) -> str | None:
        module = _MODULES.get(type(op))
        if module is None:
            return "the reference backend has no such op"
        for buffer in (*op.reads(), *op.writes()):
            if buffer.dtype not in self.activation_dtypes:
                return f"activations of {buffer.dtype}"
        reason: str | None = module.supports(op, weights)
        return reason

    def describe(self, op: ops.Op, _weights: Mapping[WeightName, Weight]) -> str:
        """Which implementation serves an op that is supported."""
        return linear.describe(op, self._device) if isinstance(op, ops.Linear) else "torch"

    def kv_block_bytes(self, spec: KVGroupSpec, block_size: int) -> int:
        self._check_kv(spec)
        return kv_token_bytes(spec) * block_size

    def allocate_kv(self, plan: KVPlan) -> ReferenceKVCache:
        for spec in plan.groups:
            self._check_kv(spec)
        return ReferenceKVCache(plan, self._device)

    def compile(
        self,
        program: Program,
        weights: Mapping[WeightName, Weight],
        kv_cache: KVCache,
        capacity: Capacity,
    ) -> ReferenceExecutable:
        if not isinstance(kv_cache, ReferenceKVCache):
            raise TypeError("the KV cache was allocated by another backend")
        refused = first_refusal(self, program.ops, weights)
        if refused is not None:
            raise UnsupportedOpError(refused)
        with torch.inference_mode():
            binder = Binder(weights, kv_cache, capacity, self._device, program.vocab_size)
            binder.allocate(program.buffers)
            body, head = (
                [_MODULES[type(op)].bind(op, binder) for op in half] for half in program.split()
            )
        return ReferenceExecutable(program, binder, body, head)

    def _check_kv(self, spec: KVGroupSpec) -> None:
        if spec.dtype not in self.kv_dtypes:
            raise UnsupportedOpError(
                f"paged_attention: the reference backend keeps no KV cache of {spec.dtype}, "
                f"only of {', '.join(self.kv_dtypes)}"
            )
