"""`python -m hasten.kernels.triton.check`: compile everything, judge it, write the report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from hasten.kernels.triton.check.compiling import compile_all
from hasten.kernels.triton.check.recording import Variant, record_launches
from hasten.kernels.triton.check.report import write_report
from hasten.kernels.triton.check.rules import Compiled, one_of_each, split_classes, violations
from hasten.kernels.triton.check.shapes import MODELS, SCHEMES, all_programs

ARCHITECTURES = ("sm_90", "sm_89", "sm_80")
FEW_VARIANTS = 10
"""So many are compiled before another process has started."""


def main() -> int:
    """Exit status 1 when something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the report")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES)
    parser.add_argument("--model", action="append", choices=tuple(MODELS))
    parser.add_argument("--scheme", action="append", choices=SCHEMES)
    parser.add_argument(
        "--quick", action="store_true", help="one variant of each kernel, kind and tile"
    )
    parser.add_argument("--kernel", action="append", help="only kernels of this name")
    parser.add_argument(
        "--kept", type=Path, default=Path("build/kernel-check"), help="folder of what was found"
    )
    arguments = parser.parse_args()
    started = time.monotonic()
    results: list[Compiled] = []
    models = tuple(arguments.model or MODELS)
    schemes = tuple(arguments.scheme or SCHEMES)
    for arch in arguments.arch or ARCHITECTURES:
        variants = record_launches(arch, all_programs(models, schemes))
        if arguments.quick:
            variants = one_of_each(variants)
        results += compile_arch(arch, variants, arguments.kernel, arguments.kept)
    write_report(results, models, arguments.out, is_quick=arguments.quick)
    complaints = judge(results)
    seconds = time.monotonic() - started
    print("\n".join(complaints))  # noqa: T201 (a command's output)
    print(f"{len(results)} variants, {len(complaints)} complaints, {seconds:.0f} s")  # noqa: T201
    return 1 if complaints else 0


def compile_arch(
    arch: str, variants: Mapping[Variant, str], kernels: Collection[str] | None, kept: Path
) -> list[Compiled]:
    """Compile what was recorded for one architecture: all of it, or some kernels."""
    wanted = [variant for variant in variants if kernels is None or variant.kernel in kernels]
    capability = int(arch.removeprefix("sm_"))
    num_processes = max(1, min(len(os.sched_getaffinity(0)), len(wanted) // FEW_VARIANTS))
    results = []
    for variant, outcome in compile_all(wanted, capability, num_processes, kept):
        label = variants[variant]
        if isinstance(outcome, str):
            results.append(Compiled(arch, label, variant, None, outcome))
        else:
            results.append(Compiled(arch, label, variant, outcome))
    return results


def judge(results: list[Compiled]) -> list[str]:
    """All complaints, one line each."""
    complaints = [
        f"{result.arch} {result.variant.kernel} ({result.label}, {_sizes(result)}): {what}"
        for result in results
        for what in violations(result)
    ]
    for name, families in split_classes(results).items():
        complaints.append(f"bit class {name}: {sorted(families)}")
    return complaints


def _sizes(result: Compiled) -> str:
    names = ("WIDTH", "GROUP_SIZE", "BLOCK_ROWS", "SPREAD", "num_segments")
    found = [(name, result.variant.constant(name)) for name in names]
    return " ".join(f"{name.lower()} {value}" for name, value in found if value is not None)


if __name__ == "__main__":
    sys.exit(main())
