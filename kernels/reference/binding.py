"""What the ops of a program are bound to: buffers, weights, the KV cache, per-step inputs.

    compile   bind(op, binder) takes `Activation`s, weights and `PerStep` values from the `Binder`
              and returns a `Kernel`, a function without arguments
    run       the executable sets every activation's rows and refreshes every per-step value,
              then calls the kernels in order

So a kernel looks nothing up: it reads attributes of objects that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Rows
from hasten.kernels.slices import LogitSlice
from hasten.kernels.weights import DenseWeight

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import numpy.typing as npt
    from hasten.kernels.program import Buffer, Capacity, Program, WeightName
    from hasten.kernels.reference.kv_cache import ReferenceKVCache
    from hasten.kernels.step import StepBatch, StepResult
    from hasten.kernels.weights import Weight

TORCH_DTYPES = {
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.I32: torch.int32,
}

MIN_ROWS = 4
"""Buffers have at least this many rows, so that products may run over padding (see `linear`)."""

Kernel = Callable[[], None]
Value = TypeVar("Value")


@dataclass(slots=True)
class Activation:
    """One buffer: `data` at capacity, and `rows`, the part that the current step uses."""

    data: torch.Tensor  # [capacity, width]
    rows: torch.Tensor  # [num_rows, width], a view of `data`

    def set_num_rows(self, num_rows: int) -> None:
        self.rows = self.data[:num_rows]

    def at_least(self, num_rows: int) -> torch.Tensor:
        """The rows in use and, where they are fewer than `num_rows`, undefined ones after them."""
        return self.rows if len(self.rows) >= num_rows else self.data[:num_rows]


@dataclass(slots=True)
class PerStep(Generic[Value]):
    """A value made from the batch at the start of each step and shared by the ops that read it."""

    make: Callable[[StepBatch], Value]
    _value: Value | None = None

    def refresh(self, batch: StepBatch) -> None:
        self._value = self.make(batch)

    @property
    def value(self) -> Value:
        assert self._value is not None, "read outside a step"
        return self._value


@dataclass(slots=True)
class Binder:
    """Gives ops what they are bound to while one program is compiled."""

    weights: Mapping[WeightName, Weight]
    kv_cache: ReferenceKVCache
    capacity: Capacity
    device: torch.device
    vocab_size: int
    activations: dict[Buffer, Activation] = field(default_factory=dict)
    per_step_values: dict[Hashable, PerStep[Any]] = field(default_factory=dict)
    logit_slice: LogitSlice = field(default_factory=LogitSlice)
    results: list[StepResult] = field(default_factory=list)  # of the head's slices in this step
    _tensors: dict[tuple[WeightName, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def allocate(self, buffers: Sequence[Buffer]) -> None:
        """Allocate every buffer to capacity."""
        num_rows = {
            Rows.TOKENS: max(self.capacity.max_tokens, MIN_ROWS),
            Rows.LOGITS: max(self.capacity.max_logit_rows, MIN_ROWS),
        }
        for buffer in buffers:
            shape = (num_rows[buffer.rows], buffer.width)
            data = torch.zeros(shape, dtype=TORCH_DTYPES[buffer.dtype], device=self.device)
            self.activations[buffer] = Activation(data, data[:0])

    def activation(self, buffer: Buffer) -> Activation:
        return self.activations[buffer]

    def activations_of(self, program: Program, rows: Rows) -> tuple[Activation, ...]:
        return tuple(self.activations[made] for made in program.buffers if made.rows is rows)

    def weight(self, name: WeightName) -> Weight:
        return self.weights[name]

    def tensor(self, name: WeightName, dtype: torch.dtype) -> torch.Tensor:
        """The dequantised weight as a tensor, shared by the ops that ask for the same."""
        key = (name, dtype)
        if key not in self._tensors:
            self._tensors[key] = to_tensor(self.weights[name], dtype, self.device)
        return self._tensors[key]

    def per_step(self, key: Hashable, make: Callable[[StepBatch], Value]) -> PerStep[Value]:
        """The value that `make` gives in each step, made once for all that use this `key`."""
        if key not in self.per_step_values:
            self.per_step_values[key] = PerStep(make)
        return self.per_step_values[key]

    def token_ids(self) -> PerStep[torch.Tensor]:  # [T] int64
        return self.per_step("token_ids", lambda batch: self.index(batch.token_ids))

    def index(self, array: npt.NDArray[np.integer]) -> torch.Tensor:
        """A numpy array as an index tensor (int64) on the device."""
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


def to_tensor(weight: Weight, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A weight in plain numbers of `dtype`; a copy, unless it is dense and of `dtype` already."""
    if isinstance(weight, DenseWeight):
        return _dense_tensor(weight.data).to(device=device, dtype=dtype)
    return torch.from_numpy(weight.dequantize()).to(device=device, dtype=dtype)


def _dense_tensor(data: npt.NDArray[Any]) -> torch.Tensor:
    """A copy: torch knows no `ml_dtypes`, and must not be handed a read-only map as writable."""
    if data.dtype.name == "bfloat16":
        return torch.from_numpy(data.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(data))
