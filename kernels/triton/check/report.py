"""The findings as docs/kernels.json (every variant) and docs/kernels.md (a table)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.kernels.triton.check.recording import ALIGNMENT

if TYPE_CHECKING:
    from hasten.kernels.triton.check.rules import Compiled

HEADER = """# The Triton kernels

`--kernels triton` serves with Triton kernels (`kernels/triton/`). On a machine with a CUDA device
that is the default; without one, `TRITON_INTERPRET=1` runs them on the CPU, correctly and very
slowly, which is how they are tested:

    .venv/bin/pytest tests/cpu/triton
    TRITON_INTERPRET=1 .venv/bin/hasten check --kernels triton

`make interpreter` runs the spine's property tests with a whole engine on interpreted kernels: bf16,
fp8 and int4 weights, bf16 and fp8 caches, alone, in company, in chunks, preempted and with drafts.

They take bf16 activations, bf16 and fp8 caches, and every weight scheme. What a weight becomes on
the device is in `kernels/triton/matrices.py`, how sums keep a row's bits the same for any number of
rows in `kernels/triton/products.py` and `kernels/triton/paged_attention.py`, which norms and
activations quantise for the fp8 product behind them in `kernels/triton/fusion.py`, how steps become
CUDA graphs in `kernels/triton/graphs.py` ([gpu.md](gpu.md)). Tile sizes, warps and stages are in
`kernels/triton/launch.json`, by architecture; `hasten check --tune` measures them anew on the GPU
at hand and changes no result.

A product is compiled for a kind of weight and a tile, not for widths, which are arguments: the
layers of a model share a few compiled kernels, and so do all models. What is compiled apart: inputs
that 128 does not divide, sizes that 16 does not divide, weights of one segment.

## The machine code

`make kernels` compiles every kernel for every configuration of that table, without a GPU, and reads
what comes out; it writes this page. What it finds is kept in `build/kernel-check`, so that it goes
on where it was interrupted and compiles again only what changed. It fails on spilled registers, on
variants of one bit class that use different matrix instructions, on fp8 products without the fp8
instruction, on products and attention that miss the warp group's instructions on Hopper, and on
decode paths without 16-byte loads. The bit class of a variant says which others must give a row the
same bits: same architecture, kernel and kind of operands, hence one matrix instruction and one K
step, whatever its width.

Below: {count} variants, {extent}, with the shapes of
{models}. Each line sums up the variants of one kernel, architecture and tile;
`kernels.json` has them one by one.

"""
COLUMNS = ("arch", "kernel", "kind", "rows", "warps x stages", "variants", "matrix instructions",
           "registers", "shared KB", "spills", "loads")  # fmt: skip


def as_json(result: Compiled) -> dict[str, Any]:
    """One variant, with what compiles it again and what came out."""
    variant, code = result.variant, result.code
    found: dict[str, Any] = {"error": result.error}
    if code is not None:
        found = {
            "mma": list(code.mma_names),
            "registers": code.registers,
            "shared_bytes": code.shared_bytes,
            "spills": code.num_spills,
            "stack_bytes": code.stack_bytes,
            "widest_load_bytes": code.widest_load_bytes,
        }
    return {
        "arch": result.arch,
        "kernel": variant.kernel,
        "kind": result.kind,
        "bit_class": result.bit_class if result.has_products else None,
        "first_used_by": result.label,
        "arguments": {
            name: f"{kind}:{ALIGNMENT}" if is_aligned else kind
            for name, kind, is_aligned in variant.arguments
        },
        "constants": dict(variant.constants),
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        **found,
    }


def write_report(
    results: Sequence[Compiled], models: Sequence[str], folder: Path, *, is_quick: bool
) -> None:
    """Write both files into `folder`."""
    rows = ",\n".join(json.dumps(as_json(result)) for result in results)
    (folder / "kernels.json").write_text(f"[\n{rows}\n]\n")
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row) + " |" for row in summarize(results)]
    extent = "one of each kernel, kind and tile (`--quick`)" if is_quick else "all there are"
    text = (
        HEADER.format(count=len(results), extent=extent, models=", ".join(models))
        + "\n".join(lines)
        + "\n"
    )
    (folder / "kernels.md").write_text(text)


def summarize(results: Sequence[Compiled]) -> list[tuple[str, ...]]:
    """One row per architecture, kernel, kind and tile."""
    alike: dict[tuple[str, ...], list[Compiled]] = defaultdict(list)
    for result in results:
        variant = result.variant
        rows = str(variant.constant("BLOCK_ROWS") or "")
        shape = f"{variant.num_warps} x {variant.num_stages}"
        name = variant.kernel.removesuffix("_kernel")
        alike[result.arch, name, result.kind, rows, shape].append(result)
    return [(*key, *_figures(group)) for key, group in sorted(alike.items())]


def _figures(group: list[Compiled]) -> tuple[str, ...]:
    codes = [result.code for result in group if result.code is not None]
    if not codes:
        return str(len(group)), "does not compile", "", "", "", ""
    names = sorted({name for code in codes for name in code.mma_names})
    return (
        str(len(group)),
        ", ".join(names),
        _span([code.registers for code in codes]),
        _span([code.shared_bytes // 1024 for code in codes]),
        str(max(code.num_spills for code in codes)),
        f"{min(code.widest_load_bytes for code in codes)} bytes",
    )


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
