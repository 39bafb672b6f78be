"""Which implementation serves each op of a program, or why none does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hasten.kernels.backend import Backend
    from hasten.kernels.ops import Op
    from hasten.kernels.program import Program, WeightName
    from hasten.kernels.weights import Weight
    from rich.table import Table


@runtime_checkable
class Describes(Protocol):
    """A backend that names the implementation it chose for an op (instruction set, layout)."""

    def describe(self, op: Op, weights: Mapping[WeightName, Weight], /) -> str: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """`num_ops` equal ops of a program: what serves them, or the reason why nothing does."""

    op: str
    operands: str
    num_ops: int
    implementation: str | None
    reason: str | None


def explain(
    backend: Backend, program: Program, weights: Mapping[WeightName, Weight]
) -> tuple[Choice, ...]:
    """One choice for each kind of op and operands, in order of first use."""
    counts = Counter(_choose(backend, op, weights) for op in program.ops)
    return tuple(
        Choice(name, operands, num_ops, implementation, reason)
        for (name, operands, implementation, reason), num_ops in counts.items()
    )


def render_choices(backend: Backend, choices: tuple[Choice, ...]) -> Table:
    """The choices as a table for a terminal."""
    from rich.table import Table

    table = Table(title=f"ops served by {backend.name}")
    for column in ("op", "operands", "times", "implementation"):
        table.add_column(column)
    for choice in choices:
        served = choice.implementation or f"[bold red]none:[/] {choice.reason}"
        table.add_row(choice.op, choice.operands, str(choice.num_ops), served)
    return table


def _choose(
    backend: Backend, op: Op, weights: Mapping[WeightName, Weight]
) -> tuple[str, str, str | None, str | None]:
    reason = backend.supports(op, weights)
    implementation = None
    if reason is None:
        described = backend.describe(op, weights) if isinstance(backend, Describes) else ""
        implementation = described or backend.name
    return op.name, _operands(op, weights), implementation, reason


def _operands(op: Op, weights: Mapping[WeightName, Weight]) -> str:
    buffers = [f"{buffer.width} {buffer.dtype}" for buffer in dict.fromkeys(op.reads())]
    schemes = [_scheme(weights[name]) for name in op.weights()]
    return " x ".join((*buffers, *schemes))


def _scheme(weight: Weight) -> str:
    shape = ", ".join(str(side) for side in weight.shape)
    return f"{type(weight).__name__.removesuffix('Weight')}[{shape}]"
