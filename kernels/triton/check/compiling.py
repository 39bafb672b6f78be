"""Compiling recorded launches for an architecture, on as many processes as wanted.

What was found is kept by what it depends on: the source of the kernel and of all that it calls,
the variant, the architecture, Triton's version, and the source of what compiles and reads it. A run
that was interrupted goes on where it was, and one after a change compiles what changed. Exercised
by `pytest tests/cpu/triton/test_compile_check.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import triton
from hasten.kernels.triton.check import sass
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
    variants: Iterable[Variant], capability: int, num_processes: int, kept: Path
) -> Iterator[tuple[Variant, MachineCode | str]]:
    """Each variant with its machine code, or with why it does not compile.

    What compiled is kept in the folder `kept`.
    """
    kept.mkdir(parents=True, exist_ok=True)
    attempt = partial(_attempt, capability=capability, kept=kept)
    if num_processes == 1:
        yield from map(attempt, variants)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        yield from pool.map(attempt, variants)


def _attempt(variant: Variant, capability: int, kept: Path) -> tuple[Variant, MachineCode | str]:
    path = kept / f"{_identity(variant, capability)}.json"
    found = _read(path)
    if found is not None:
        return variant, found
    try:
        code = compile_variant(variant, capability)
    except Exception as error:  # noqa: BLE001 (whatever the compiler raises is the finding)
        lines = str(error).strip().splitlines() or [""]
        return variant, f"{type(error).__name__}: {lines[-1]}"
    # Written elsewhere and moved: nobody ever sees half of it.
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(code.to_json())
    unfinished.replace(path)
    return variant, code


def _read(path: Path) -> MachineCode | None:
    """What was kept; None if nothing was, or nothing that can be read."""
    try:
        return MachineCode.from_json(path.read_text())
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _identity(variant: Variant, capability: int) -> str:
    """Names everything that decides what comes out."""
    kernel = getattr(importlib.import_module(variant.module), variant.kernel)
    tools = (triton.__version__, str(ALIGNMENT), _own_source())
    parts = (kernel.cache_key, repr(variant), str(capability), *tools)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def _own_source() -> str:
    """Of this module and of `sass`."""
    return "".join(Path(file).read_text() for file in (__file__, sass.__file__))
