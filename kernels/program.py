"""The step program: what a model does in one step, recorded once and replayed by every backend.

A model's `build(program, config, shard)` runs at load time. It asks the `Program` for buffers
whose number of rows is symbolic and appends ops to it; no arithmetic happens. A backend compiles
the finished program against weights, a KV cache and a `Capacity`, and then replays it for each
`StepBatch`.

Row symbols:

    TOKENS (T)   one row per token computed in the step, all requests laid end to end
    LOGITS (L)   one row per position whose logits are wanted

A program has two halves, split at its `GatherRows`: the *body* runs once over T rows, the *head*
runs over L rows, in slices of at most `Capacity.max_logit_rows`, so that a prompt whose every
position is scored needs no logits buffer of prompt length times vocabulary.

Not here: arithmetic (the backends), weights (`kernels.weights`), what a step contains
(`kernels.step`). Exercised by `pytest tests/unit/kernels`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NewType

from hasten.kernels.dtypes import DType

if TYPE_CHECKING:
    from hasten.kernels.ops import Op

WeightName = NewType("WeightName", str)


class Rows(enum.Enum):
    """The symbolic number of rows of a buffer."""

    TOKENS = "T"
    LOGITS = "L"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A matrix of activations: [rows, width] of `dtype`, written and read by ops of one program."""

    buffer_id: int
    name: str
    rows: Rows
    width: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers whose KV cache has one geometry, and so one block table.

    `window` is the number of most recent tokens (the token itself included) that attention reads,
    None for all of them.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype: DType
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's place in the KV cache: which group, and which layer inside the group."""

    group_id: int
    layer_idx: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest step that a compiled program accepts; buffers are allocated to this size."""

    max_tokens: int
    max_requests: int
    max_logit_rows: int
    max_model_len: int


@dataclass(slots=True)
class Program:
    """The recorder. Valid to compile once `finish` has returned.

    `taps` maps a name to the buffer whose rows a caller reads after a step, `inputs` to one whose
    [T, width] rows a caller writes before it (hidden states for a drafter head).
    """

    vocab_size: int
    kv_groups: tuple[KVGroupSpec, ...]
    ops: list[Op] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    taps: dict[str, Buffer] = field(default_factory=dict)
    inputs: dict[str, Buffer] = field(default_factory=dict)

    def buffer(self, name: str, rows: Rows, width: int, dtype: DType) -> Buffer:
        """Declare a buffer; its contents are undefined until an op writes it."""
        if width < 1:
            raise ValueError(f"buffer {name!r}: width must be at least 1, got {width}")
        made = Buffer(len(self.buffers), name, rows, width, dtype)
        self.buffers.append(made)
        return made

    def shared_buffer(self, name: str, rows: Rows, width: int, dtype: DType) -> Buffer:
        """The buffer of this name, declared when first asked for: layers use the same ones."""
        for made in self.buffers:
            if made.name == name:
                if (made.rows, made.width, made.dtype) != (rows, width, dtype):
                    raise ValueError(f"buffer {name!r} is asked for in another shape")
                return made
        return self.buffer(name, rows, width, dtype)

    def add(self, op: Op) -> None:
        """Append one op. Raises ValueError when its operands do not belong to this program."""
        for operand in (*op.reads(), *op.writes()):
            if operand.buffer_id >= len(self.buffers) or self.buffers[operand.buffer_id] != operand:
                raise ValueError(f"{op.name}: buffer {operand.name!r} is not of this program")
        op.check()
        self.ops.append(op)

    def tap(self, name: str, source: Buffer) -> None:
        """Keep `source` as it is at this point, to be read after the step under `name`."""
        from hasten.kernels.ops import Tap

        if name in self.taps:
            raise ValueError(f"tap {name!r} is recorded twice")
        kept = self.buffer(f"tap.{name}", source.rows, source.width, source.dtype)
        self.add(Tap(x=source, out=kept))
        self.taps[name] = kept

    def input(self, name: str, width: int, dtype: DType) -> Buffer:
        """Rows [T, width] that the caller gives under `name` before each step."""
        from hasten.kernels.ops import Input

        if name in self.inputs:
            raise ValueError(f"input {name!r} is recorded twice")
        given = self.buffer(f"input.{name}", Rows.TOKENS, width, dtype)
        self.add(Input(given))
        self.inputs[name] = given
        return given

    def split(self) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
        """The ops of the body (T rows) and of the head (L rows, from the gather on)."""
        from hasten.kernels.ops import GatherRows

        for index, op in enumerate(self.ops):
            if isinstance(op, GatherRows):
                return tuple(self.ops[:index]), tuple(self.ops[index:])
        return tuple(self.ops), ()

    def weight_names(self) -> tuple[WeightName, ...]:
        """Every weight that the ops read, once each, in order of first use."""
        return tuple(dict.fromkeys(name for op in self.ops for name in op.weights()))
