"""Compiling recorded launches for an architecture, on as many processes as wanted."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import triton
from hasten.kernels.triton.check.recording import ALIGNMENT, Variant
from hasten.kernels.triton.check.sass import MachineCode, read_cubin
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP_SIZE = 32


def compile_variant(variant: Variant, capability: int) -> MachineCode:
    """The machine code of one variant. Raises what Triton raises where it cannot be compiled."""
    kernel = getattr(importlib.import_module(variant.module), variant.kernel)
    constants = dict(variant.constants)
    signature = {name: kind for name, kind, _ in variant.arguments}
    signature |= dict.fromkeys(constants, "constexpr")
    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", ALIGNMENT]]
        for name, _, is_aligned in variant.arguments
        if is_aligned
    }
    ordered = {name: signature[name] for name in kernel.arg_names}
    compiled = triton.compile(
        ASTSource(kernel, ordered, constants, aligned),
        target=GPUTarget("cuda", capability, WARP_SIZE),
        options={
            "num_warps": variant.num_warps,
            "num_stages": variant.num_stages,
            "enable_fp_fusion": False,
        },
    )
    return read_cubin(compiled.asm["cubin"], shared_bytes=compiled.metadata.shared)


def compile_all(
    variants: Iterable[Variant], capability: int, num_processes: int
) -> Iterator[tuple[Variant, MachineCode | str]]:
    """Each variant with its machine code, or with why it does not compile."""
    attempt = partial(_attempt, capability=capability)
    if num_processes == 1:
        yield from map(attempt, variants)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from pool.map(attempt, variants)


def _attempt(variant: Variant, capability: int) -> tuple[Variant, MachineCode | str]:
    try:
        return variant, compile_variant(variant, capability)
    except Exception as error:  # noqa: BLE001 (whatever the compiler raises is the finding)
        lines = str(error).strip().splitlines() or [""]
        return variant, f"{type(error).__name__}: {lines[-1]}"
