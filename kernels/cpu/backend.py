"""`CpuBackend`: compiles programs for the native kernels and runs them.

Numerics. Buffers are float32 inside whatever dtype the program declares; the dtype says how exact
the products are. In a bfloat16 program, linears with integer weights take int8 activations
(quantised per token and group of 32) or, as `LinearInputs.BF16`, bfloat16 ones; plain weights
are bfloat16; the codes of fp8 weights are too, exactly, and their scales multiply the sums. A
bfloat16 KV cache is multiplied in bfloat16. In a float32 program every product is float32. An fp8
KV cache is multiplied in the program's dtype, which holds its codes exactly; scales multiply scores
and probabilities. All sums are float32 in an order that the shapes alone decide.

Exercised by `pytest tests/cpu/native`.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from hasten.kernels import ops
from hasten.kernels.backend import KeptWeights, UnsupportedOpError, first_refusal
from hasten.kernels.cpu.lowering import Lowering, parts_of, weight_format
from hasten.kernels.cpu.packed_file import PackedFile
from hasten.kernels.cpu.packing import GROUP, INPUT_FORMS, integer_format, packed_bytes
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Rows
from hasten.kernels.step import MAX_LOGPROBS, StepResult
from hasten.kernels.weights import StackedWeight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    from hasten.kernels.backend import KVCache, KVPlan
    from hasten.kernels.chains import Chain, DraftStep
    from hasten.kernels.cpu import _native
    from hasten.kernels.ops import Op
    from hasten.kernels.program import Capacity, KVGroupSpec, Program, WeightName
    from hasten.kernels.step import BF16, F32, I32, SamplingRows, SparseRows, StepBatch
    from hasten.kernels.weights import Weight

ISA_VARIABLE = "HASTEN_CPU_ISA"
MAX_HEAD_SIZE = 256
_NAN_MESSAGE = "hold NaN"  # in native/program.cpp
_RUN_TOKENS = 256  # of the KV cache, as in native/ops.h
_TASK_TOKENS = 32  # query tokens of one attention task, as in native/program.cpp
_TASK_BYTES = 900_000  # of the threads' scratch memory that a task's rows may take


class LinearInputs(enum.StrEnum):
    """What integer weights are multiplied with in bfloat16 programs."""

    INT8 = "int8"
    BF16 = "bf16"


@dataclass(slots=True)
class CpuKVCache:
    """One array per group, laid out as native/ops.h `KVGroup` says; zero at first."""

    plan: KVPlan
    data: tuple[npt.NDArray[np.uint8], ...]

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.data)


class CpuBackend:
    """The native kernels, on `num_threads` threads (default: the processors it may run on)."""

    name = "cpu"
    num_warm_up_runs = 0

    def __init__(
        self,
        num_threads: int | None = None,
        linear_inputs: LinearInputs = LinearInputs.INT8,
        isa: str | None = None,
    ) -> None:
        """Raises ValueError when `isa` (default: $HASTEN_CPU_ISA) is unknown or not runnable."""
        from hasten.kernels.cpu import _native

        self._native = _native
        self.num_threads = num_threads or len(os.sched_getaffinity(0))
        self.linear_inputs = linear_inputs
        self.isa = _native.best_isa(os.environ.get(ISA_VARIABLE, "") if isa is None else isa)

    @cached_property
    def _team(self) -> _native.Team:
        """The threads that run all programs of this backend."""
        return self._native.Team(self.num_threads)

    @property
    def num_busy_processors(self) -> int:
        return self.num_threads

    @property
    def activation_dtypes(self) -> tuple[DType, ...]:
        return DType.BF16, DType.F32

    @property
    def kv_dtypes(self) -> tuple[DType, ...]:
        return tuple(_KV_TYPES)

    def describe(self, op: Op, weights: Mapping[WeightName, Weight]) -> str:
        """The instruction set, and for a linear what it multiplies."""
        if not isinstance(op, ops.Linear | ops.GroupedLinear):
            return f"cpu ({self.isa})"
        wants_int8 = self.linear_inputs is LinearInputs.INT8
        formats = dict.fromkeys(
            weight_format(part, op.x, wants_int8=wants_int8)
            for part in parts_of(weights[op.weight])
        )
        products = " | ".join(
            f"{found.name.lower()} x {INPUT_FORMS[found].name}".lower() for found in formats
        )
        return f"cpu ({self.isa}, {products})"

    def supports(self, op: Op, weights: Mapping[WeightName, Weight]) -> str | None:
        if isinstance(op, ops.PagedAttention):
            return _why_not_attention(op)
        if isinstance(op, ops.Embed) and isinstance(weights[op.table], StackedWeight):
            return "the table is stacked from several matrices"
        return None if isinstance(op, _IMPLEMENTED) else f"{op.name} is not implemented"

    def activation_group(self, weight: Weight, dtype: DType) -> int | None:
        """Inputs per group in which this matrix's activations become int8; None: they do not."""
        if dtype is DType.F32 or self.linear_inputs is not LinearInputs.INT8:
            return None
        is_integer = not isinstance(weight, StackedWeight) and integer_format(weight) is not None
        return GROUP if is_integer else None

    def weight_bytes(
        self, op: ops.Linear | ops.GroupedLinear, weights: Mapping[WeightName, Weight]
    ) -> int:
        """Bytes of a linear's weight as the kernels read it."""
        wants_int8 = self.linear_inputs is LinearInputs.INT8
        return sum(
            packed_bytes(part, weight_format(part, op.x, wants_int8=wants_int8))
            for part in parts_of(weights[op.weight])
        )

    def kv_block_bytes(self, spec: KVGroupSpec, block_size: int) -> int:
        _check_kv(spec, block_size)
        per_head = _padded(spec.head_size) * spec.dtype.itemsize
        if spec.dtype is DType.FP8_E4M3:
            per_head += DType.BF16.itemsize  # the scale
        return spec.num_layers * block_size * 2 * spec.num_kv_heads * per_head

    def allocate_kv(self, plan: KVPlan) -> CpuKVCache:
        """Zeroed memory, taken from the system as blocks are first written."""
        sizes = (
            _whole_runs(blocks, plan.block_size) * self.kv_block_bytes(spec, plan.block_size)
            for spec, blocks in zip(plan.groups, plan.num_blocks, strict=True)
        )
        return CpuKVCache(plan, tuple(self._native.allocate(size) for size in sizes))

    def compile(
        self,
        program: Program,
        weights: Mapping[WeightName, Weight],
        kv_cache: KVCache,
        capacity: Capacity,
    ) -> CpuExecutable:
        if not isinstance(kv_cache, CpuKVCache):
            raise TypeError("the KV cache was not allocated by the cpu backend")
        refused = first_refusal(self, program.ops, weights)
        if refused is not None:
            raise UnsupportedOpError(f"the cpu backend cannot run {refused}")
        target = self._native.Program(
            self.isa,
            self._team,
            capacity.max_tokens,
            capacity.max_requests,
            capacity.max_logit_rows,
            capacity.max_model_len,
            program.vocab_size,
            kv_cache.data,
            [
                _kv_shape(spec, blocks, kv_cache.plan.block_size)
                for spec, blocks in zip(kv_cache.plan.groups, kv_cache.plan.num_blocks, strict=True)
            ],
        )
        kept = PackedFile(weights.folder, self.isa) if isinstance(weights, KeptWeights) else None
        lowering = Lowering(
            program,
            weights,
            target,
            self._native.Arena(),
            capacity.max_model_len,
            self.linear_inputs is LinearInputs.INT8,
            kept,
        )
        lowering.run()
        if kept is not None:
            kept.save()
        ids = lowering.buffer_ids
        taps = {name: (ids[buffer.buffer_id], buffer.rows) for name, buffer in program.taps.items()}
        inputs = {name: ids[buffer.buffer_id] for name, buffer in program.inputs.items()}
        return CpuExecutable(target, capacity, taps, inputs)


class CpuExecutable:
    """A program bound to packed weights and a KV cache."""

    def __init__(
        self,
        target: _native.Program,
        capacity: Capacity,
        taps: Mapping[str, tuple[int, Rows]],
        inputs: Mapping[str, int],
    ) -> None:
        self._target = target
        self._tap_ids = {name: idx for name, (idx, _) in taps.items()}
        self._input_ids = inputs
        self._taps = {name: (target.rows(idx), rows) for name, (idx, rows) in taps.items()}
        self._inputs = {name: target.rows(idx) for name, idx in inputs.items()}
        self._num_rows = {Rows.TOKENS: 0, Rows.LOGITS: 0}
        self._max_logit_rows = capacity.max_logit_rows
        rows = capacity.max_tokens
        self._token_ids = np.zeros(rows, np.int32)
        self._logprobs = np.zeros(rows, np.float32)
        self._top_ids = np.zeros(rows * MAX_LOGPROBS, np.int32)
        self._top_logprobs = np.zeros(rows * MAX_LOGPROBS, np.float32)

    @property
    def num_bytes(self) -> int:
        """Memory of activations and scratch, weights and KV cache apart."""
        return self._target.num_bytes

    def run(self, batch: StepBatch) -> StepResult:
        """Compute one step; the result's arrays are valid until the next call.

        Raises ValueError when the batch exceeds its capacities or points outside its tables, and
        FloatingPointError when a row's logits hold NaN.
        """
        sampling = batch.sampling
        num_rows = batch.num_logit_rows
        num_top = max(0, *sampling.num_logprobs.tolist()) if num_rows else 0
        top_ids = self._top_ids[: num_rows * num_top]
        top_logprobs = self._top_logprobs[: num_rows * num_top]
        top_ids.fill(-1)
        top_logprobs.fill(np.nan)
        try:
            self._target.run(
                batch.token_ids,
                batch.positions,
                batch.query_starts,
                batch.seq_lens,
                batch.table_rows,
                batch.logit_rows,
                tuple((g.slot_mapping, g.block_tables, g.block_copies) for g in batch.groups),
                _columns(sampling),
                _sparse(sampling.counts),
                _sparse(sampling.bias),
                sampling.mask_idx,
                sampling.masks,
                sampling.masks_ready,
                num_top,
                self._token_ids,
                self._logprobs,
                top_ids,
                top_logprobs,
            )
        except ValueError as error:
            # What C++ calls a domain error arrives as ValueError; callers tell the two apart.
            if _NAN_MESSAGE in str(error):
                raise FloatingPointError(str(error)) from error
            raise
        last_slice = (num_rows - 1) % self._max_logit_rows + 1 if num_rows else 0
        self._num_rows = {Rows.TOKENS: batch.num_tokens, Rows.LOGITS: last_slice}
        return StepResult(
            self._token_ids[:num_rows],
            self._logprobs[:num_rows],
            top_ids.reshape(num_rows, num_top),
            top_logprobs.reshape(num_rows, num_top),
        )

    def bind_chain(self, chain: Chain) -> None:
        """See `RunsChains`."""
        known, features, hidden, left = None, -1, -1, -1
        if chain.head is not None:
            known = chain.head.known.view(np.uint16)
            features = self._input_ids[chain.head.features]
            hidden = self._input_ids[chain.head.hidden]
            left = self._tap_ids[chain.head.hidden]
        self._target.bind_chain(
            chain.translation,
            chain.group_ids.start,
            chain.group_ids.stop,
            chain.least_shared,
            known,
            features,
            hidden,
            left,
        )

    def run_chain(
        self, step: DraftStep, num_passes: int, least_survival: float, survivals: F32
    ) -> tuple[I32, F32]:
        """See `RunsChains`."""
        num_rows, sampling = len(step.guessing), step.sampling
        num_passes = max(min(num_passes, len(self._token_ids) // max(num_rows, 1)), 1)
        try:
            num_passes = self._target.draft(
                step.token_ids,
                step.query_starts,
                step.starts,
                step.table_rows,
                step.guessing,
                step.tables,
                None if sampling is None else _columns(sampling),
                None if sampling is None else sampling.mask_idx,
                None if sampling is None else sampling.masks,
                step.hidden,
                num_passes,
                least_survival,
                survivals,
                self._token_ids,
                self._logprobs,
            )
        except ValueError as error:
            # What C++ calls a domain error arrives as ValueError; callers tell the two apart.
            if _NAN_MESSAGE in str(error):
                raise FloatingPointError(str(error)) from error
            raise
        num_tokens = len(step.token_ids) if num_passes == 1 else num_rows
        self._num_rows = {Rows.TOKENS: num_tokens, Rows.LOGITS: num_rows}
        shape, count = (num_passes, num_rows), num_passes * num_rows
        return self._token_ids[:count].reshape(shape), self._logprobs[:count].reshape(shape)

    def store_taps(self, names: Sequence[str], group_id: int, rows: BF16) -> None:
        """See `StoresTaps`."""
        self._target.store_taps([self._tap_ids[n] for n in names], group_id, rows.view(np.uint16))

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        data, rows = self._taps[name]
        return data[: self._num_rows[rows]]

    def set_input(self, name: str, rows: npt.NDArray[np.float32]) -> None:
        self._inputs[name][: len(rows)] = rows


_IMPLEMENTED = (
    ops.Embed,
    ops.RmsNorm,
    ops.Linear,
    ops.RopeStoreKV,
    ops.ActMul,
    ops.GatherRows,
    ops.Tap,
    ops.Input,
    ops.NormColumns,
    ops.AddScaled,
    ops.Route,
    ops.GroupedLinear,
    ops.CombineExperts,
    ops.ScaleLogits,
    ops.Sample,
)


_KV_TYPES = {DType.BF16: 0, DType.F32: 1, DType.FP8_E4M3: 2}
"""As `KVType` in native/ops.h."""


def _columns(rows: SamplingRows) -> tuple[npt.NDArray[Any], ...]:
    """In the order of native/step_arrays.h."""
    return (
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.repetition_penalty,
        rows.frequency_penalty,
        rows.presence_penalty,
        rows.seeds,
        rows.positions,
        rows.sample_idx,
        rows.num_logprobs,
        rows.target_ids,
    )


def _sparse(
    rows: SparseRows | None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]] | None:
    return None if rows is None else (rows.starts, rows.token_ids, rows.values)


def _whole_runs(num_blocks: int, block_size: int) -> int:
    """Blocks of the runs that they lie in, which have a power of two of them."""
    run_blocks = 1 << max(_RUN_TOKENS // block_size, 1).bit_length() - 1
    return -(-num_blocks // run_blocks) * run_blocks


def _padded(head_size: int) -> int:
    return -(-head_size // 16) * 16


def _kv_shape(spec: KVGroupSpec, num_blocks: int, block_size: int) -> tuple[int, ...]:
    head_size, kv_type = _padded(spec.head_size), _KV_TYPES[spec.dtype]
    return spec.num_layers, spec.num_kv_heads, head_size, num_blocks, block_size, kv_type


def _check_kv(spec: KVGroupSpec, block_size: int) -> None:
    if spec.dtype not in _KV_TYPES:
        raise ValueError(
            f"the cpu backend has no KV cache of {spec.dtype}, only {', '.join(_KV_TYPES)}"
        )
    if block_size != 8 and block_size % 16:
        raise ValueError(
            f"the cpu backend needs blocks of 8 tokens or of a multiple of 16: {block_size}"
        )
    if spec.head_size > MAX_HEAD_SIZE:
        raise ValueError(f"the cpu backend takes heads up to {MAX_HEAD_SIZE}: {spec.head_size}")


def _why_not_attention(op: ops.PagedAttention) -> str | None:
    if op.head_size > MAX_HEAD_SIZE:
        return f"heads of {op.head_size}, larger than {MAX_HEAD_SIZE}"
    rows = _TASK_TOKENS * op.num_heads // op.num_kv_heads
    if rows * (2 * _padded(op.head_size) + 2) * 4 > _TASK_BYTES:
        return f"{op.num_heads // op.num_kv_heads} heads of {op.head_size} share a KV head"
    return None
