"""What the kernels of a program are bound to: device buffers, step inputs, scratch, and a launcher.

    compile   bind(op, binder) takes tensors, inputs and launch configurations from the `Binder` and
              returns a `Kernel`, a function without arguments
    run       the executable uploads the step's inputs, sets every buffer's number of rows, then
              calls the kernels in order

All tensors keep their addresses from compiling on, so that launches may be captured (`graphs`). On
the device "meta" nothing is computed and nothing allocated: the compile check binds programs there,
to see what they would launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import triton
from hasten.kernels.backend import BoundBytes
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Rows
from hasten.kernels.reference.binding import TORCH_DTYPES
from hasten.kernels.slices import LogitSlice
from hasten.kernels.triton.launch import INTERPRETER
from hasten.kernels.triton.machine import HostMachine

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    import numpy.typing as npt
    from hasten.kernels import ops
    from hasten.kernels.program import Buffer, Capacity, Program, WeightName
    from hasten.kernels.step import StepBatch, StepResult
    from hasten.kernels.triton.kv_cache import TritonKVCache
    from hasten.kernels.triton.launch import LaunchTable
    from hasten.kernels.triton.machine import Machine
    from hasten.kernels.weights import Weight

Kernel = Callable[[], None]

ELEMENTS_PER_PROGRAM = 1024
"""The least that a row-wise program is worth starting for."""
INTERPRETED_ROWS = 64
"""Under the interpreter every program costs the same, however large its tile."""


class Launcher(Protocol):
    """Starts a Triton kernel on a grid of programs."""

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *operands: torch.Tensor | float,
        num_warps: int,
        num_stages: int = 1,
        **constants: Any,
    ) -> None: ...


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *operands: torch.Tensor | float,
    num_warps: int,
    num_stages: int = 1,
    **constants: Any,
) -> None:
    """Start `kernel`; a grid of no programs is nothing to do.

    Multiplications and additions are fused only where a kernel says so: left to the compiler, two
    variants of one sum could round differently.
    """
    if 0 not in grid:
        kernel[grid](
            *operands,
            num_warps=num_warps,
            num_stages=num_stages,
            enable_fp_fusion=False,
            **constants,
        )


def warps_for(num_elements: int) -> int:
    """So many that a thread holds about eight elements of a tile."""
    return max(1, min(16, int(triton.next_power_of_2(num_elements)) // 256))


@dataclass(slots=True)
class Activation:
    """One buffer: `data` at capacity, of which the current step uses `num_rows`."""

    data: torch.Tensor  # [capacity, width]
    num_rows: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """A device array of fixed address, and the host memory from which it is filled."""

    data: torch.Tensor  # at capacity
    host: torch.Tensor
    machine: Machine

    def put(self, values: npt.NDArray[Any], num_rows: int = 0) -> None:
        """Make `values` the first entries, and zero those after them up to `num_rows`.

        Raises ValueError when there are more values than the capacity.
        """
        if len(values) > len(self.data):
            raise ValueError(f"{len(values)} entries exceed the {len(self.data)} compiled for")
        host = self.host.numpy()
        host[tuple(slice(0, size) for size in values.shape)] = values
        host[len(values) : num_rows] = 0
        stop = max(len(values), num_rows)
        self.machine.upload(self.data[:stop], self.host[:stop])


@dataclass(frozen=True, slots=True)
class StepInput:
    """An array that is made anew from the batch at the start of each step."""

    staged: Staged
    make: Callable[[StepBatch], npt.NDArray[Any]]
    is_padded: bool = False  # with zeros, up to the rows that are computed

    @property
    def data(self) -> torch.Tensor:
        return self.staged.data

    def refresh(self, batch: StepBatch, num_rows: int) -> None:
        """Raises ValueError when the batch holds more than the capacity."""
        self.staged.put(self.make(batch), num_rows if self.is_padded else 0)


@dataclass(slots=True)
class Binder:
    """Gives ops what they are bound to while one program is compiled."""

    weights: Mapping[WeightName, Weight]
    kv_cache: TritonKVCache
    capacity: Capacity
    device: torch.device
    vocab_size: int
    table: LaunchTable
    has_fp8: bool
    num_programs: int  # of kernels that walk a work list
    launch: Launcher = launch
    machine: Machine = field(default_factory=HostMachine)
    activations: dict[Buffer, Activation] = field(default_factory=dict)
    inputs: dict[Hashable, StepInput] = field(default_factory=dict)
    before_step: list[Callable[[StepBatch], None]] = field(default_factory=list)
    variants: list[Callable[[], bool]] = field(default_factory=list)  # see `variant`
    logit_slice: LogitSlice = field(default_factory=LogitSlice)
    results: list[StepResult] = field(default_factory=list)  # of the head's slices in this step
    work_bytes: int = 0  # of buffers, inputs and scratch memory
    _readers: dict[int, ops.Linear] = field(default_factory=dict)  # by id of who quantises for them
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _scratch: dict[str, torch.Tensor] = field(default_factory=dict)

    def allocate(self, buffers: Sequence[Buffer]) -> None:
        """Allocate every buffer to capacity."""
        num_rows = {
            Rows.TOKENS: self.capacity.max_tokens,
            Rows.LOGITS: self.capacity.max_logit_rows,
        }
        for buffer in buffers:
            shape = (max(num_rows[buffer.rows], 1), buffer.width)
            self.activations[buffer] = Activation(self.zeros(shape, TORCH_DTYPES[buffer.dtype]))

    @property
    def bound_bytes(self) -> BoundBytes:
        """What is held by now; what several share (a tied head, no offsets) counts once."""
        held = {id(tensor): tensor.nbytes for tensor in _tensors_in(tuple(self._made.values()))}
        return BoundBytes(sum(held.values()), self.work_bytes)

    def activation(self, buffer: Buffer) -> Activation:
        return self.activations[buffer]

    def activations_of(self, program: Program, rows: Rows) -> tuple[Activation, ...]:
        return tuple(self.activations[made] for made in program.buffers if made.rows is rows)

    @property
    def variant(self) -> bool:
        """Whether the body launches in this step what it does not in each (merges of splits)."""
        return any(is_needed() for is_needed in self.variants)

    def staged(self, shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Staged:
        """A device array that is filled from the host."""
        data = self.zeros(shape, dtype)
        return Staged(data, self.machine.staging(data), self.machine)

    def fuse(self, pairs: Sequence[tuple[ops.Op, ops.Linear]]) -> None:
        """Let the first of each pair quantise what the second reads (`fusion`)."""
        self._readers = {id(op): reader for op, reader in pairs}

    def reader_to_quantize_for(self, op: ops.Op) -> ops.Linear | None:
        return self._readers.get(id(op))

    def is_quantized_for(self, reader: ops.Linear) -> bool:
        return any(reader is known for known in self._readers.values())

    def rows_per_program(self, width: int) -> int:
        """How many rows of so many columns one program of a row-wise kernel takes."""
        if self.table.arch == INTERPRETER:
            return INTERPRETED_ROWS
        return max(1, ELEMENTS_PER_PROGRAM // width)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made = torch.zeros(shape, dtype=dtype, device=self.device)
        self.work_bytes += made.nbytes
        return made

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gave when first asked for under this key: packed weights, tables."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def step_input(
        self,
        key: Hashable,
        shape: tuple[int, ...],
        make: Callable[[StepBatch], npt.NDArray[Any]],
        *,
        is_padded: bool = False,
    ) -> StepInput:
        """The input under this key, int32, refreshed once per step for all that read it."""
        if key not in self.inputs:
            self.inputs[key] = StepInput(self.staged(shape), make, is_padded)
        return self.inputs[key]

    def token_input(
        self, key: Hashable, make: Callable[[StepBatch], npt.NDArray[np.int32]]
    ) -> StepInput:
        """An input of one number per token."""
        return self.step_input(key, (max(self.capacity.max_tokens, 1),), make, is_padded=True)

    def scratch(self, name: str, num_elements: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory that ops use one after another; grown before the first step, zero at first."""
        have = self._scratch.get(name)
        if have is None or have.numel() < num_elements:
            self.work_bytes -= 0 if have is None else have.nbytes
            self._scratch[name] = self.zeros((num_elements,), dtype)
        return self._scratch[name]

    def get_scratch(self, name: str) -> torch.Tensor:
        """The scratch memory at its final size: to be called when launching, not when binding."""
        return self._scratch[name]

    def vector(self, name: WeightName) -> torch.Tensor:
        """A dense weight as fp32 [n]."""
        made: torch.Tensor = self.once(
            ("vector", name), lambda: self.to_device(self.weights[name].dequantize().reshape(-1))
        )
        return made

    def to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A copy of a numpy array (of `ml_dtypes` too) on the device."""
        return to_device(array, self.device)


def _tensors_in(made: object) -> Iterator[torch.Tensor]:
    """Tensors, in tuples or alone; what else is made once took its memory from the binder."""
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, tuple):
        for each in made:
            yield from _tensors_in(each)


_VIEWS = {
    "bfloat16": (np.int16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
}


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy on `device`; on "meta" only its shape and dtype."""
    view = _VIEWS.get(array.dtype.name)
    if device.type == "meta":
        dtype = view[1] if view else torch.from_numpy(np.zeros(0, array.dtype)).dtype
        return torch.empty(array.shape, dtype=dtype, device=device)
    if view is None:
        return torch.from_numpy(np.array(array, order="C")).to(device)
    plain = np.array(array, order="C").view(view[0])
    return torch.from_numpy(plain).view(view[1]).to(device)


ELEMENT_DTYPES = frozenset({DType.BF16, DType.F32})
"""What buffers may hold; products take bf16 inputs only."""
