"""`TritonBackend`: the op table as Triton kernels, and compiling a program against them."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import torch
from hasten.kernels import ops
from hasten.kernels.backend import BoundBytes, KVPlan, UnsupportedOpError, first_refusal
from hasten.kernels.dtypes import DType
from hasten.kernels.triton import (
    elementwise,
    embed,
    experts,
    grouped_linear,
    linear,
    norms,
    paged_attention,
    rope_store_kv,
    sample,
)
from hasten.kernels.triton.binding import Binder, launch
from hasten.kernels.triton.executable import TritonExecutable
from hasten.kernels.triton.fusion import quantizing_pairs
from hasten.kernels.triton.graphs import max_graph_bytes
from hasten.kernels.triton.kv_cache import KV_DTYPES, TritonKVCache, kv_token_bytes
from hasten.kernels.triton.launch import INTERPRETER, LaunchTable
from hasten.kernels.triton.machine import CudaMachine, HostMachine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels.backend import KVCache
    from hasten.kernels.program import Capacity, KVGroupSpec, Program, WeightName
    from hasten.kernels.triton.binding import Kernel, Launcher
    from hasten.kernels.triton.machine import Machine
    from hasten.kernels.weights import Weight

_MODULES: dict[type[ops.Op], ModuleType] = {
    ops.Embed: embed,
    ops.RmsNorm: norms,
    ops.NormColumns: norms,
    ops.AddScaled: elementwise,
    ops.Linear: linear,
    ops.RopeStoreKV: rope_store_kv,
    ops.PagedAttention: paged_attention,
    ops.ActMul: elementwise,
    ops.Route: experts,
    ops.GroupedLinear: grouped_linear,
    ops.CombineExperts: experts,
    ops.GatherRows: elementwise,
    ops.Input: elementwise,
    ops.ScaleLogits: elementwise,
    ops.Tap: elementwise,
    ops.Sample: sample,
}

_BUFFER_DTYPES = (DType.BF16, DType.F32)
_PROGRAMS_PER_PROCESSOR = 2
KERNELS_PER_OP = 2
"""The most that an op launches in a body, on average: a product quantises its inputs first."""
COUNTED_BLOCK_SIZE = 16
"""Memory of a step's tables is counted for blocks of so many tokens."""


class TritonBackend:
    """Triton kernels on a CUDA device, or interpreted on the CPU (TRITON_INTERPRET=1).

    `arch` names the launch configurations, by default those of the device: the table has some for
    sm_80, sm_89 and sm_90, and a device takes the newest that is not newer than itself. With
    `enforce_eager`, and where `machine` has no graphs, every kernel is launched on its own.
    """

    name = "triton"
    activation_dtypes = (DType.BF16,)
    kv_dtypes = (DType.BF16, DType.FP8_E4M3)

    def __init__(
        self,
        device: str | None = None,
        arch: str | None = None,
        launcher: Launcher = launch,
        machine: Machine | None = None,
        *,
        enforce_eager: bool = False,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._launcher = launcher
        self._machine = machine or _machine_of(self.device)
        self._captures = not (enforce_eager or isinstance(self._machine, HostMachine))
        self._num_programs = 264 if self.device.type == "meta" else 2
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self._num_programs = _PROGRAMS_PER_PROCESSOR * properties.multi_processor_count
            arch = arch or _nearest_arch(properties.major * 10 + properties.minor)
        self.table = LaunchTable.load(arch or INTERPRETER)

    @property
    def num_busy_processors(self) -> int:
        """The one that launches kernels."""
        return 1

    @property
    def num_warm_up_runs(self) -> int:
        """The first compiles kernels, the second captures (`graphs`)."""
        if self._captures:
            return 2
        return int(self.device.type == "cuda")

    @property
    def has_fp8(self) -> bool:
        """Whether products of e4m3 numbers have an instruction."""
        return self.table.arch != "sm_80"

    def supports(self, op: ops.Op, weights: Mapping[WeightName, Weight]) -> str | None:
        module = _MODULES.get(type(op))
        if module is None:
            return "the triton backend has no such op"
        for buffer in (*op.reads(), *op.writes()):
            if buffer.dtype not in _BUFFER_DTYPES:
                return f"activations of {buffer.dtype}"
        reason: str | None = module.supports(op, weights)
        return reason

    def describe(self, op: ops.Op, weights: Mapping[WeightName, Weight]) -> str:
        """The launch configurations' architecture, and for a product what it multiplies."""
        if isinstance(op, ops.Linear):
            return f"{self.table.arch}, {linear.describe(op, weights, has_fp8=self.has_fp8)}"
        if isinstance(op, ops.GroupedLinear):
            described = grouped_linear.describe(op, weights, has_fp8=self.has_fp8)
            return f"{self.table.arch}, {described}"
        return self.table.arch

    def kv_block_bytes(self, spec: KVGroupSpec, block_size: int) -> int:
        self._check_kv(spec)
        return kv_token_bytes(spec) * block_size

    def allocate_kv(self, plan: KVPlan) -> TritonKVCache:
        for spec in plan.groups:
            self._check_kv(spec)
        return TritonKVCache(plan, self.device)

    def compile(
        self,
        program: Program,
        weights: Mapping[WeightName, Weight],
        kv_cache: KVCache,
        capacity: Capacity,
    ) -> TritonExecutable:
        if not isinstance(kv_cache, TritonKVCache):
            raise TypeError("the KV cache was allocated by another backend")
        refused = first_refusal(self, program.ops, weights)
        if refused is not None:
            raise UnsupportedOpError(refused)
        binder, body, head = self._bind(program, weights, kv_cache, capacity, self.device)
        return TritonExecutable(program, binder, body, head, captures=self._captures)

    def free_memory_bytes(self) -> int | None:
        """See `kernels.backend.OwnsMemory`."""
        if self.device.type != "cuda":
            return None
        return int(torch.cuda.mem_get_info(self.device)[0])

    def bound_bytes(
        self, program: Program, weights: Mapping[WeightName, Weight], capacity: Capacity
    ) -> BoundBytes:
        """See `kernels.backend.OwnsMemory`. Counted by binding on "meta", where nothing is held."""
        meta = torch.device("meta")
        plan = KVPlan(program.kv_groups, (1,) * len(program.kv_groups), COUNTED_BLOCK_SIZE)
        binder, _, _ = self._bind(program, weights, TritonKVCache(plan, meta), capacity, meta)
        return binder.bound_bytes

    def graph_bytes(self, program: Program, capacity: Capacity) -> int:
        """See `kernels.backend.OwnsMemory`."""
        if not self._captures:
            return 0
        body, _ = program.split()
        return max_graph_bytes(KERNELS_PER_OP * len(body), capacity.max_tokens)

    def _bind(
        self,
        program: Program,
        weights: Mapping[WeightName, Weight],
        kv_cache: TritonKVCache,
        capacity: Capacity,
        device: torch.device,
    ) -> tuple[Binder, list[Kernel], list[Kernel]]:
        """The kernels of body and head."""
        with torch.inference_mode():
            binder = Binder(
                weights,
                kv_cache,
                capacity,
                device,
                program.vocab_size,
                self.table,
                self.has_fp8,
                self._num_programs,
                self._launcher,
                self._machine if device == self.device else HostMachine(),
            )
            binder.allocate(program.buffers)
            binder.fuse(quantizing_pairs(program.ops, weights, has_fp8=self.has_fp8))
            body, head = (
                [_MODULES[type(op)].bind(op, binder) for op in half] for half in program.split()
            )
        return binder, body, head

    def _check_kv(self, spec: KVGroupSpec) -> None:
        if spec.dtype not in KV_DTYPES:
            raise UnsupportedOpError(
                f"paged_attention: the triton backend keeps no KV cache of {spec.dtype}, "
                f"only of {', '.join(KV_DTYPES)}"
            )
        if spec.dtype is DType.FP8_E4M3 and not self.has_fp8:
            raise UnsupportedOpError(f"paged_attention: {self.table.arch} has no e4m3 numbers")


def _machine_of(device: torch.device) -> Machine:
    return CudaMachine() if device.type == "cuda" else HostMachine()


def _nearest_arch(capability: int) -> str:
    """The newest architecture in the table that is not newer than the device."""
    known = [found for found in (90, 89, 80) if found <= capability]
    if not known:
        raise ValueError(f"the triton backend needs compute capability 8.0, not {capability / 10}")
    return f"sm_{known[0]}"
