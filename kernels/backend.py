"""The seam between the engine and what computes: backends compile programs and run steps.

`get_backend(name)` imports a backend only when it is asked for. A backend answers `supports` with
None or the reason it cannot take an op; compiling refuses a program with such an op, naming it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    from hasten.kernels.dtypes import DType
    from hasten.kernels.ops import Op
    from hasten.kernels.program import Capacity, KVGroupSpec, Program, WeightName
    from hasten.kernels.step import BF16, StepBatch, StepResult
    from hasten.kernels.weights import Weight

BACKENDS = ("triton", "cpu", "reference")


class UnsupportedOpError(ValueError):
    """A program holds an op that the backend cannot take; the message says which and why."""


@dataclass(frozen=True, slots=True)
class KVPlan:
    """How large the KV cache is: blocks per group, the null block included."""

    groups: tuple[KVGroupSpec, ...]
    num_blocks: tuple[int, ...]
    block_size: int


class KVCache(Protocol):
    """Storage of K and V, by group, layer and block; the layout inside is the backend's own."""

    plan: KVPlan

    @property
    def num_bytes(self) -> int: ...


class Executable(Protocol):
    """A program bound to weights and a KV cache."""

    def run(self, batch: StepBatch) -> StepResult:
        """Compute one step. The result's arrays are valid until the next call.

        Raises ValueError when the batch exceeds the capacity compiled for.
        """
        ...

    def tap(self, name: str) -> npt.NDArray[np.float32]:
        """The tapped rows of the last step: [T, width], or [L, width] of a buffer of logit rows.

        Of logit rows that exceed `Capacity.max_logit_rows`, only the last slice. Valid until the
        next step.
        """
        ...

    def set_input(self, name: str, rows: npt.NDArray[np.float32]) -> None:
        """Give the [T, width] rows of an input of the program, for the next step."""
        ...


@runtime_checkable
class StoresTaps(Protocol):
    """An executable that leaves what it taps in rows by slot, without being asked each step."""

    def store_taps(self, names: Sequence[str], group_id: int, rows: BF16) -> None:
        """From now on: [num_slots, width], of these taps side by side; blocks are copied along."""
        ...


class Backend(Protocol):
    """A set of op implementations."""

    name: str

    @property
    def num_warm_up_runs(self) -> int:
        """Runs of a step of a new size that compile or capture for it, and take longer."""
        ...

    @property
    def num_busy_processors(self) -> int:
        """Processors of the host that a step keeps busy from its beginning to its end."""
        ...

    @property
    def activation_dtypes(self) -> tuple[DType, ...]:
        """The dtypes that activations may have, the preferred one first."""
        ...

    @property
    def kv_dtypes(self) -> tuple[DType, ...]:
        """The dtypes that the KV cache may have."""
        ...

    def supports(self, op: Op, weights: Mapping[WeightName, Weight]) -> str | None:
        """None, or why this op cannot run here."""
        ...

    def kv_block_bytes(self, spec: KVGroupSpec, block_size: int) -> int:
        """Bytes that one block takes in one group, all its layers together."""
        ...

    def allocate_kv(self, plan: KVPlan) -> KVCache: ...

    def compile(
        self,
        program: Program,
        weights: Mapping[WeightName, Weight],
        kv_cache: KVCache,
        capacity: Capacity,
    ) -> Executable:
        """Bind a program. Raises UnsupportedOpError."""
        ...


@dataclass(frozen=True, slots=True)
class BoundBytes:
    """Device memory of a program bound to its weights, beside cache and graphs."""

    weights: int  # as kernels read them, tables included
    work: int  # buffers, inputs, scratch memory


@runtime_checkable
class OwnsMemory(Protocol):
    """A backend that computes on a device, whose memory is not the host's."""

    def free_memory_bytes(self) -> int | None:
        """What the device has left; None where it is the host after all."""
        ...

    def bound_bytes(
        self, program: Program, weights: Mapping[WeightName, Weight], capacity: Capacity
    ) -> BoundBytes:
        """What compiling takes beside the cache."""
        ...

    def graph_bytes(self, program: Program, capacity: Capacity) -> int:
        """What the graphs of this program may come to take."""
        ...


class KeptWeights(dict["WeightName", "Weight"]):
    """The weights of one checkpoint, and a folder for what backends make of just these.

    Bound to each other, because a name says little: a drafter's weights have the same ones.
    """

    def __init__(self, weights: Mapping[WeightName, Weight], folder: Path) -> None:
        super().__init__(weights)
        self.folder = folder


def first_refusal(
    backend: Backend, recorded: Iterable[Op], weights: Mapping[WeightName, Weight]
) -> str | None:
    """The first recorded op that `backend` cannot take, and why; None if it can take all."""
    reasons = ((op.name, backend.supports(op, weights)) for op in recorded)
    return next((f"{name}: {why}" for name, why in reasons if why is not None), None)


def available_backends() -> tuple[str, ...]:
    """Those of `BACKENDS` that this installation can run, the fastest first.

    Interpreted Triton kernels, which nobody wants to wait for, are not among them.
    """
    from hasten.kernels import cpu, triton

    found = {"triton": triton.has_device(), "cpu": cpu.why_unavailable() is None}
    return tuple(name for name in BACKENDS if found.get(name, True))


def get_backend(
    name: str,
    num_threads: int | None = None,
    cpu_activations: str = "int8",
    *,
    enforce_eager: bool = False,
) -> Backend:
    """The backend called `name`; "auto" is the fastest that works here.

    `num_threads` bounds the CPU threads it computes with (default: its own choice); results do
    not depend on it. `cpu_activations` ("int8", "bf16") is what the native kernels multiply
    integer weights with. `enforce_eager` keeps a GPU's from capturing graphs. Raises ValueError
    naming the backends that exist, or saying why one cannot run here.
    """
    if name == "auto":
        name = available_backends()[0]
    if name == "cpu":
        from hasten.kernels.cpu import CpuBackend, LinearInputs, why_unavailable

        reason = why_unavailable()
        if reason is not None:
            raise ValueError(f"kernels 'cpu' cannot run here: {reason}")
        return CpuBackend(num_threads, LinearInputs(cpu_activations))
    if cpu_activations != "int8":
        raise ValueError(f"kernels {name} have no {cpu_activations} activations of their own")
    if name == "triton":
        return _triton_backend(enforce_eager=enforce_eager)
    if name == "reference":
        from hasten.kernels.reference import ReferenceBackend

        return ReferenceBackend(num_threads)
    raise ValueError(f"unknown kernels {name!r}; there are: {', '.join(BACKENDS)}")


def _triton_backend(*, enforce_eager: bool) -> Backend:
    from hasten.kernels.triton import why_unavailable

    reason = why_unavailable()
    if reason is not None:
        raise ValueError(f"kernels 'triton' cannot run here: {reason}")
    from hasten.kernels.triton.backend import TritonBackend

    return TritonBackend(enforce_eager=enforce_eager)
