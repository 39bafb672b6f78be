"""What must hold of the machine code.

no spills           in any kernel
one bit class       all variants of one product, whatever the number of rows, use one family of
                    matrix instructions with one K step: then their sums run in one order
the right family    fp8 products use the fp8 instruction; from sm_90 on all products and
                    attention use those of a warp group
wide loads          decode paths load 16 bytes at a time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.kernels.triton.check.recording import Variant
    from hasten.kernels.triton.check.sass import MachineCode

PRODUCTS = ("linear_kernel", "grouped_linear_kernel")
ATTENTION = "attention_kernel"
DECODE_ROWS = 16
WIDE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """One variant on one architecture, or why it does not compile."""

    arch: str
    label: str  # the model and scheme that asked for it first
    variant: Variant
    code: MachineCode | None
    error: str = ""

    @property
    def kind(self) -> str:
        """What the kernel works on: a weight's kind, a cache's dtype, or nothing to tell."""
        variant = self.variant
        if variant.kernel in PRODUCTS:
            grouped = variant.constant("GROUP_SIZE") or variant.constant("INPUT_BY_GROUP")
            by_group = "by group" if grouped and self.is_fp8 else ""
            return " ".join(
                filter(None, (variant.constant("KIND"), variant.constant("CODES"), by_group))
            )
        if variant.kernel == ATTENTION:
            return "fp8 cache" if variant.constant("IS_FP8") else "bf16 cache"
        return ""

    @property
    def is_fp8(self) -> bool:
        """Whether e4m3 numbers are multiplied as they are."""
        return bool(self.variant.constant("KIND") == "fp8")

    @property
    def bit_class(self) -> str:
        """Variants of one class must give a row the same bits."""
        return f"{self.arch} {self.variant.kernel.removeprefix('grouped_')} {self.kind}"

    @property
    def has_products(self) -> bool:
        return self.variant.kernel in (*PRODUCTS, ATTENTION)


def wanted_mma(arch: str, *, is_fp8: bool) -> tuple[str, int]:
    """The family and K step that a product or attention must use."""
    if arch == "sm_90":
        return ("QGMMA", 32) if is_fp8 else ("HGMMA", 16)
    return ("QMMA", 32) if is_fp8 else ("HMMA", 16)


def violations(compiled: Compiled) -> list[str]:
    """What does not hold of one variant."""
    code = compiled.code
    if code is None:
        return [f"does not compile: {compiled.error}"]
    found = []
    if code.num_spills or code.stack_bytes:
        found.append(f"{code.num_spills} spills, {code.stack_bytes} bytes of stack")
    if compiled.has_products:
        wanted = wanted_mma(compiled.arch, is_fp8=compiled.is_fp8)
        if code.mma != (wanted,):
            used = ", ".join(f"{family} k{step}" for family, step in code.mma) or "none"
            found.append(f"matrix instructions: {used}, not {wanted[0]} k{wanted[1]}")
    if needs_wide_loads(compiled.variant) and code.widest_load_bytes < WIDE_BYTES:
        found.append(f"loads of {code.widest_load_bytes} bytes at most")
    return found


def needs_wide_loads(variant: Variant) -> bool:
    """Whether memory bounds this variant: attention, and products of few rows."""
    few = variant.kernel in PRODUCTS and variant.constant("BLOCK_ROWS") <= DECODE_ROWS
    return few or variant.kernel == ATTENTION


def one_of_each(variants: Mapping[Variant, str]) -> dict[Variant, str]:
    """The first variant of each kernel, kind of operands and tile."""
    first: dict[object, tuple[Variant, str]] = {}
    for variant, label in variants.items():
        kind = Compiled("", label, variant, None).kind
        key = variant.kernel, kind, variant.constant("BLOCK_ROWS"), variant.constant("BLOCK_OUT")
        first.setdefault(key, (variant, label))
    return dict(first.values())


def split_classes(results: list[Compiled]) -> Mapping[str, set[tuple[tuple[str, int], ...]]]:
    """Bit classes whose variants use different matrix instructions, and which."""
    used: dict[str, set[tuple[tuple[str, int], ...]]] = {}
    for result in results:
        if result.code is not None and result.has_products:
            used.setdefault(result.bit_class, set()).add(result.code.mma)
    return {name: families for name, families in used.items() if len(families) > 1}
