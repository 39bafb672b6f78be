"""What a program would launch: the kernels, their types and constants, without launching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from hasten.kernels.backend import KVPlan
from hasten.kernels.conformance.cutting import BatchMaker, Part
from hasten.kernels.dtypes import DType
from hasten.kernels.sampling_rows import greedy_rows
from hasten.kernels.step import SparseRows
from hasten.kernels.triton.backend import TritonBackend
from hasten.kernels.triton.check.shapes import CAPACITY, ROW_COUNTS
from hasten.kernels.triton.machine import HostMachine

if TYPE_CHECKING:
    from hasten.kernels.program import Program, WeightName
    from hasten.kernels.step import StepBatch
    from hasten.kernels.weights import Weight

BLOCK_SIZE = 16
ALIGNMENT = 16
"""Bytes (of addresses) and multiples (of numbers) that Triton specialises kernels for."""

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as it would be compiled; `arguments` are (name, type, is a multiple of ALIGNMENT).

    `constants` holds arguments equal to 1 too, as Triton compiles them in.
    """

    kernel: str
    module: str
    arguments: tuple[tuple[str, str, bool], ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int
    num_stages: int

    def constant(self, name: str) -> Any:
        return dict(self.constants).get(name)


@dataclass(slots=True)
class Recording:
    """A launcher that launches nothing. Each variant is kept once, with who wanted it first."""

    variants: dict[Variant, str] = field(default_factory=dict)
    label: str = ""

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *operands: torch.Tensor | float,
        num_warps: int,
        num_stages: int = 1,
        **constants: Any,
    ) -> None:
        if 0 in grid:
            return
        given = tuple(zip(kernel.params[: len(operands)], operands, strict=True))
        ones = {parameter.name: 1 for parameter, operand in given if _is_one(parameter, operand)}
        arguments = tuple(_argument(*each) for each in given if not _is_one(*each))
        variant = Variant(
            kernel.__name__,
            kernel.__module__,
            arguments,
            tuple(sorted((constants | ones).items())),
            num_warps,
            num_stages,
        )
        self.variants.setdefault(variant, self.label)


def _is_one(parameter: Any, operand: torch.Tensor | float) -> bool:
    """Whether an argument is the number that Triton compiles in."""
    return isinstance(operand, int) and operand == 1 and not parameter.do_not_specialize


def _argument(parameter: Any, operand: torch.Tensor | float) -> tuple[str, str, bool]:
    name: str = parameter.name
    if isinstance(operand, torch.Tensor):
        offset = operand.storage_offset() * operand.element_size()
        return name, _POINTERS[operand.dtype], offset % ALIGNMENT == 0
    if isinstance(operand, float):
        return name, "fp32", False
    return name, "i32", operand % ALIGNMENT == 0 and not parameter.do_not_specialize


def record_launches(
    arch: str,
    programs: Iterator[tuple[str, str, DType, Program, Mapping[WeightName, Weight]]],
) -> dict[Variant, str]:
    """All variants that programs (`shapes.all_programs`) would launch on `arch`."""
    recording = Recording()
    backend = TritonBackend("meta", arch, recording, _NoMachine())
    for model, scheme, kv_dtype, program, weights in programs:
        if kv_dtype is DType.FP8_E4M3 and not backend.has_fp8:
            continue
        recording.label = f"{model}, {scheme}"
        cache = backend.allocate_kv(KVPlan(program.kv_groups, (64,), BLOCK_SIZE))
        executable = backend.compile(program, weights, cache, CAPACITY)
        for num_rows in ROW_COUNTS:
            executable.run_body(num_rows)
            executable.run_head(min(num_rows, CAPACITY.max_logit_rows))
        executable.run(_rich_step(program))
    return recording.variants


class _NoMachine(HostMachine):
    """Takes what is staged, for a device that holds nothing."""

    def staging(self, data: torch.Tensor) -> torch.Tensor:
        return torch.zeros(data.shape, dtype=data.dtype)


def _rich_step(program: Program) -> StepBatch:
    """One token behind a long context, whose row asks for everything that sampling has."""
    context = CAPACITY.max_model_len // 2
    maker = BatchMaker((context,), program.kv_groups)
    one, entries = (
        np.zeros(1, np.int32),
        SparseRows(np.array([0, 1], np.int32), np.zeros(1, np.int32), np.ones(1, np.float32)),
    )
    num_words = -(-program.vocab_size // 32)
    sampling = replace(
        greedy_rows(1),
        counts=entries,
        bias=entries,
        mask_idx=one,
        masks=np.zeros((1, num_words), np.uint32),
    )
    batch = maker.batch([Part(0, context - 1, context)])
    return replace(batch, token_ids=one, logit_rows=one, sampling=sampling)
