"""The start-up report: what computes, what every byte is for, and how long the start took.

Exercised by `pytest tests/cpu/engine/test_build.py` and shown by `hasten serve` when it starts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING

from hasten.kernels.dtypes import DType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hasten.core.binding import ModelBinding
    from hasten.core.memory import MemoryPlan
    from hasten.core.models import KVFormat


@dataclass(slots=True)
class Phases:
    """Seconds that each phase of the start took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        yield
        self.seconds[name] = perf_counter() - begin

    def line(self) -> str:
        parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
        return f"started in   {sum(self.seconds.values()):.2f} s ({parts})"


def report_lines(name: str, binding: ModelBinding, plan: MemoryPlan, phases: Phases) -> list[str]:
    """The whole report, one fact a line."""
    return [
        f"{name}: {_computation(binding)}",
        *binding.notes,
        *plan.lines(),
        _savings(binding, plan.block_size),
        phases.line(),
    ]


def _computation(binding: ModelBinding) -> str:
    """One line on what computes."""
    return (
        f"kernels {binding.backend.name}, activations {binding.activation_dtype.value}, "
        f"KV cache {_kv_names(binding.kv_format)}"
    )


def _savings(binding: ModelBinding, block_size: int) -> str:
    """One line on what weights and cache take of what they would in bf16."""
    own = binding.program.kv_groups[: binding.num_own_groups]
    kv_bytes, bf16_bytes = (
        sum(binding.backend.kv_block_bytes(spec, block_size) for spec in specs)
        for specs in (own, [replace(spec, dtype=DType.BF16) for spec in own])
    )
    return (
        f"of bf16      weights take {binding.model.share_of_bf16:.1%} of the bytes, "
        f"a token's KV {kv_bytes / bf16_bytes:.1%}"
    )


def _kv_names(kv_format: KVFormat) -> str:
    """The dtype, or each of them with the number of layers that it has."""
    counts = Counter(kv_format.dtypes)
    if len(counts) == 1:
        return kv_format.dtypes[0].value
    return ", ".join(f"{dtype.value} in {count} layers" for dtype, count in counts.items())
