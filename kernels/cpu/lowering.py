"""From a recorded program to native ops: which form each buffer is left in, which ops are fused.

Definitions:

    form    the shape in which an op leaves rows for those that read them: plain float32, or laid
            out (and quantised or rounded) for the linear kernels
    needs   the forms in which the readers of one write want it, up to the next write

Four rules. An op leaves its rows at once in every form that their readers want, so that
activations are quantised once, by the thread that has them in its cache. A linear whose only
reader is an `act_mul` runs with it as one op. One that only a norm reads, to add it to a residual,
adds itself: then nobody changes what a norm reads, and threads can share its rows by columns. What
follows the last write to the KV cache is computed only for the rows whose logits are wanted.

Exercised by `pytest tests/cpu/native/test_replay.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from hasten.kernels import ops
from hasten.kernels.cpu.packing import (
    GROUP,
    INPUT_FORMS,
    Form,
    PackedMatrix,
    WeightFormat,
    own_format,
    pack,
)
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Rows
from hasten.kernels.weights import DenseWeight, StackedWeight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hasten.kernels.cpu import _native
    from hasten.kernels.cpu.packed_file import PackedFile
    from hasten.kernels.program import Buffer, Program, WeightName
    from hasten.kernels.weights import Matrix, Weight

F32Array = npt.NDArray[np.float32]

ACTIVATIONS = {ops.Activation.SILU: 1, ops.Activation.GELU_TANH: 2}
"""As `Activation` in native/ops.h, 0 being none."""


@dataclass(frozen=True, slots=True)
class AddingLinear(ops.Linear):
    """out += x @ W^T (+ bias)."""

    name: ClassVar[str] = "adding_linear"

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x, self.out)


PLAIN_ONLY = (
    ops.RopeStoreKV,
    ops.NormColumns,
    ops.Input,
    ops.AddScaled,
    ops.Route,
    ops.GroupedLinear,
    ops.ScaleLogits,
    AddingLinear,
)
"""Ops that write plain rows, which get further forms in an op of their own."""


def readers(program: Program, index: int, buffer: Buffer) -> list[int]:
    """The ops that read what op `index` writes into `buffer`."""
    found = []
    for later in range(index + 1, len(program.ops)):
        op = program.ops[later]
        if buffer in op.reads():
            found.append(later)
        if buffer in op.writes():
            break
    return found


def with_additions(program: Program) -> Program:
    """The same with linears that add to a residual, where an `rms_norm` right after them did."""
    changed = list(program.ops)
    for index, (op, norm) in enumerate(zip(program.ops, program.ops[1:], strict=False)):
        if (
            isinstance(op, ops.Linear)
            and isinstance(norm, ops.RmsNorm)
            and norm.residual is not None
            and norm.x == op.out
            and norm.residual not in (op.x, op.out, norm.out)
            and readers(program, index, op.out) == [index + 1]
        ):
            changed[index] = AddingLinear(op.x, op.weight, norm.residual, op.bias)
            changed[index + 1] = replace(norm, x=norm.residual, residual=None)
    return replace(program, ops=changed)


def weight_format(weight: Matrix, x: Buffer, *, wants_int8: bool) -> WeightFormat:
    """In float32 programs every product is float32; else integers, fp8, or bfloat16."""
    if x.dtype is DType.F32:
        return WeightFormat.F32
    own = own_format(weight, wants_int8=wants_int8)
    return WeightFormat.BF16 if own is None else own


def parts_of(weight: Weight) -> tuple[Matrix, ...]:
    return weight.parts if isinstance(weight, StackedWeight) else (weight,)


@dataclass(slots=True)
class Lowering:
    """One compilation: feeds `target` with the ops of `program`."""

    program: Program
    weights: Mapping[WeightName, Weight]
    target: _native.Program
    arena: _native.Arena
    max_model_len: int
    wants_int8: bool
    kept: PackedFile | None = None  # packed matrices of earlier starts
    buffer_ids: dict[int, int] = field(default_factory=dict)
    packed: dict[tuple[object, ...], PackedMatrix] = field(default_factory=dict)
    expert_buffers: dict[tuple[int, int, int, Form], tuple[int, int]] = field(default_factory=dict)
    rope_tables: dict[ops.Rope, tuple[F32Array, F32Array]] = field(default_factory=dict)

    def run(self) -> None:
        self.program = with_additions(self.program)
        fused = self._fusions()
        needs = [self._needs(index, fused) for index in range(len(self.program.ops))]
        self._add_buffers(needs, fused)
        tail_begin = self._tail_begin()
        for index, op in enumerate(self.program.ops):
            if index == tail_begin:
                self.target.begin_tail()
            if index - 1 not in fused:
                self._lower(op, needs, index, fused)

    def _tail_begin(self) -> int | None:
        """The op after the last that writes the KV cache: from it on only logit rows matter.

        None where a caller reads other rows too, through a tap.
        """
        body, head = self.program.split()
        writers = [i for i, op in enumerate(body) if isinstance(op, ops.RopeStoreKV)]
        start = writers[-1] + 1 if writers else 0
        if not head or any(isinstance(op, ops.Tap) for op in body[start:]):
            return None
        return start

    # What readers want

    def _input_forms(self, op: ops.Op, buffer: Buffer) -> Form:
        if not isinstance(op, ops.Linear):
            return Form.PLAIN if buffer in op.reads() else Form(0)
        forms = Form.PLAIN if isinstance(op, AddingLinear) and op.out == buffer else Form(0)
        if op.x == buffer:
            for part in parts_of(self.weights[op.weight]):
                forms |= INPUT_FORMS[weight_format(part, op.x, wants_int8=self.wants_int8)]
        return forms

    def _needs(self, index: int, fused: set[int]) -> dict[int, Form]:
        """The forms wanted of each buffer that op `index` writes, by buffer id."""
        op = self.program.ops[index]
        needs: dict[int, Form] = {}
        for buffer in op.writes():
            forms = Form.PLAIN if isinstance(op, ops.Tap | ops.Input) else Form(0)
            for reader in readers(self.program, index, buffer):
                forms |= self._input_forms(self.program.ops[reader], buffer)
            needs[buffer.buffer_id] = forms
        if index in fused:
            needs = {op.writes()[0].buffer_id: Form(0)}
        return needs

    def _fusions(self) -> set[int]:
        """Indices of linears that run together with the `act_mul` right after them."""
        return {
            index
            for index, (op, after) in enumerate(
                zip(self.program.ops, self.program.ops[1:], strict=False)
            )
            if isinstance(op, ops.Linear)
            and isinstance(after, ops.ActMul)
            and after.x == op.out
            and after.out != op.x
            and after.out.width % GROUP == 0
            and not isinstance(self.weights[op.weight], StackedWeight)
            and readers(self.program, index, op.out) == [index + 1]
        }

    def _add_buffers(self, needs: list[dict[int, Form]], fused: set[int]) -> None:
        forms: dict[int, Form] = {}
        for index, op in enumerate(self.program.ops):
            for buffer in op.writes():
                wanted = needs[index][buffer.buffer_id]
                if index not in fused and not self._leaves_all(op, buffer, wanted):
                    wanted |= Form.PLAIN
                forms[buffer.buffer_id] = forms.get(buffer.buffer_id, Form(0)) | wanted
            for buffer in op.reads():
                if index - 1 not in fused:
                    read = self._input_forms(op, buffer)
                    forms[buffer.buffer_id] = forms.get(buffer.buffer_id, Form(0)) | read
        for buffer in self.program.buffers:
            self.buffer_ids[buffer.buffer_id] = self.target.add_buffer(
                buffer.width, buffer.rows is Rows.LOGITS, forms.get(buffer.buffer_id, Form.PLAIN)
            )

    def _leaves_all(self, op: ops.Op, buffer: Buffer, wanted: Form) -> bool:
        """Whether the op itself can leave `buffer` in the forms wanted."""
        if not wanted & ~Form.PLAIN:
            return True
        if isinstance(op, PLAIN_ONLY):
            return False
        if isinstance(op, ops.RmsNorm):
            return buffer != op.residual
        if isinstance(op, ops.PagedAttention):
            return op.head_size % GROUP == 0
        if isinstance(op, ops.Linear):
            rows = [part.shape[0] for part in parts_of(self.weights[op.weight])]
            return all(count % GROUP == 0 for count in rows[:-1])
        return True

    # Emitting

    def _lower(self, op: ops.Op, needs: list[dict[int, Form]], index: int, fused: set[int]) -> None:
        if index in fused:
            act = self.program.ops[index + 1]
            assert isinstance(op, ops.Linear)
            assert isinstance(act, ops.ActMul)
            self._gated(op, act, needs[index + 1][act.out.buffer_id])
            return
        later: list[tuple[Buffer, Form]] = []
        forms: dict[int, Form] = {}
        for buffer in op.writes():
            wanted = needs[index][buffer.buffer_id]
            if self._leaves_all(op, buffer, wanted):
                forms[buffer.buffer_id] = wanted
            else:
                forms[buffer.buffer_id] = Form.PLAIN
                later.append((buffer, wanted & ~Form.PLAIN))
        self._EMITTERS[type(op)](self, op, forms)
        for buffer, wanted in later:
            where = self._id(buffer)
            self.target.form(where, where, wanted)

    def _id(self, buffer: Buffer) -> int:
        return self.buffer_ids[buffer.buffer_id]

    def _embed(self, op: ops.Embed, forms: dict[int, Form]) -> None:
        weight = self.weights[op.table]
        assert not isinstance(weight, StackedWeight)
        self.target.embed(
            self._packed_table(op.table, weight).bind(),
            op.scale,
            self._id(op.out),
            forms[op.out.buffer_id],
        )

    def _rms_norm(self, op: ops.RmsNorm, forms: dict[int, Form]) -> None:
        residual = -1 if op.residual is None else self._id(op.residual)
        weight = self._vector(op.weight)
        out = self._id(op.out)
        self.target.rms_norm(self._id(op.x), residual, weight, op.eps, out, forms[op.out.buffer_id])

    def _linear(self, op: ops.Linear, forms: dict[int, Form]) -> None:
        begin = 0
        bias = None if op.bias is None else self._vector(op.bias)
        for index, part in enumerate(parts_of(self.weights[op.weight])):
            target = weight_format(part, op.x, wants_int8=self.wants_int8)
            matrix = self._packed((op.weight, index, target), part, target)
            end = begin + part.shape[0]
            part_bias = None if bias is None else _pad(bias[begin:end])
            self.target.linear(
                self._id(op.x),
                matrix.bind(),
                part_bias,
                0,
                begin,
                self._id(op.out),
                forms[op.out.buffer_id],
                isinstance(op, AddingLinear),
            )
            begin = end

    def _gated(self, op: ops.Linear, act: ops.ActMul, forms: Form) -> None:
        weight = self.weights[op.weight]
        assert not isinstance(weight, StackedWeight)
        target = weight_format(weight, op.x, wants_int8=self.wants_int8)
        order = _gate_and_up_in_turn(act.out.width)
        matrix = self._packed((op.weight, "gated", target), weight, target, order)
        bias = None if op.bias is None else np.ascontiguousarray(self._vector(op.bias)[order])
        self.target.linear(
            self._id(op.x),
            matrix.bind(),
            bias,
            ACTIVATIONS[act.activation],
            0,
            self._id(act.out),
            forms,
            False,
        )

    def _rope_store_kv(self, op: ops.RopeStoreKV, _: dict[int, Form]) -> None:
        cos, sin = self._rope_table(op.rope)
        self.target.rope_store_kv(
            self._id(op.qkv),
            op.kv.group_id,
            op.kv.layer_idx,
            op.num_heads,
            op.num_kv_heads,
            op.head_size,
            cos,
            sin,
            None if op.q_norm is None else self._vector(op.q_norm),
            None if op.k_norm is None else self._vector(op.k_norm),
            op.norm_eps,
            *(op.kv_scales or (0.0, 0.0)),
            op.qkv.dtype is DType.BF16,
        )

    def _paged_attention(self, op: ops.PagedAttention, forms: dict[int, Form]) -> None:
        self.target.paged_attention(
            self._id(op.qkv),
            op.kv.group_id,
            op.kv.layer_idx,
            op.num_heads,
            op.num_kv_heads,
            op.head_size,
            op.scale,
            op.window or 0,
            op.softcap or 0.0,
            None if op.sinks is None else self._vector(op.sinks),
            op.qkv.dtype is DType.F32,
            self._id(op.out),
            forms[op.out.buffer_id],
        )

    def _act_mul(self, op: ops.ActMul, forms: dict[int, Form]) -> None:
        activation = ACTIVATIONS[op.activation]
        self.target.act_mul(self._id(op.x), activation, self._id(op.out), forms[op.out.buffer_id])

    def _gather_rows(self, op: ops.GatherRows, forms: dict[int, Form]) -> None:
        self.target.gather_rows(self._id(op.x), self._id(op.out), forms[op.out.buffer_id])

    def _norm_columns(self, op: ops.NormColumns, _: dict[int, Form]) -> None:
        self.target.norm_columns(self._id(op.x), op.start, self._vector(op.weight), op.eps)

    def _add_scaled(self, op: ops.AddScaled, _: dict[int, Form]) -> None:
        self.target.add_scaled(self._id(op.x), self._id(op.out), op.scale)

    def _scale_logits(self, op: ops.ScaleLogits, _: dict[int, Form]) -> None:
        self.target.scale_logits(self._id(op.logits), op.scale, op.softcap or 0.0)

    def _route(self, op: ops.Route, _: dict[int, Form]) -> None:
        logits, out = self._id(op.logits), self._id(op.out)
        self.target.route(logits, op.num_active, op.renormalize, out)

    def _grouped_linear(self, op: ops.GroupedLinear, _: dict[int, Form]) -> None:
        """Sort the step's experts, gather their inputs in that order, multiply."""
        matrices = list(self._expert_matrices(op))
        forms = Form(0)
        for matrix, *_place in matrices:
            forms |= INPUT_FORMS[matrix.format]
        order, rows = self._expert_buffers(op, forms)
        self.target.sort_experts(self._id(op.routing), order)
        self.target.gather_experts(self._id(op.x), order, rows, forms)
        bound = [(matrix.bind(), expert, begin) for matrix, expert, begin in matrices]
        self.target.grouped_linear(rows, order, bound, op.part_width, self._id(op.out))

    def _expert_matrices(self, op: ops.GroupedLinear) -> Iterator[tuple[PackedMatrix, int, int]]:
        """Every matrix of a weight's experts, whose it is, and the first column that it fills."""
        weight = self.weights[op.weight]
        for index in range(op.num_experts * op.num_parts):
            expert, part = divmod(index, op.num_parts)
            rows = slice(index * op.part_width, (index + 1) * op.part_width)
            begin = part * op.num_active * op.part_width
            for piece, matrix in enumerate(parts_of(weight.take_rows(rows))):
                target = weight_format(matrix, op.x, wants_int8=self.wants_int8)
                yield self._packed((op.weight, index, piece, target), matrix, target), expert, begin
                begin += matrix.shape[0]

    def _expert_buffers(self, op: ops.GroupedLinear, forms: Form) -> tuple[int, int]:
        """An order and rows to gather into, which layers of equal shape share."""
        width = self.weights[op.weight].shape[1]
        key = (op.num_experts, op.num_active, width, forms)
        if key not in self.expert_buffers:
            self.expert_buffers[key] = (
                self.target.add_expert_order(op.num_experts, op.num_active),
                self.target.add_expert_rows(width, op.num_active, forms),
            )
        return self.expert_buffers[key]

    def _combine_experts(self, op: ops.CombineExperts, forms: dict[int, Form]) -> None:
        x, routing, out = self._id(op.x), self._id(op.routing), self._id(op.out)
        self.target.combine_experts(x, routing, out, forms[op.out.buffer_id])

    def _input(self, op: ops.Input, forms: dict[int, Form]) -> None:
        """Nothing: the executable has put the rows there."""

    def _tap(self, op: ops.Tap, forms: dict[int, Form]) -> None:
        self.target.form(self._id(op.x), self._id(op.out), forms[op.out.buffer_id])

    def _sample(self, op: ops.Sample, _: dict[int, Form]) -> None:
        self.target.sample(self._id(op.logits))

    _EMITTERS: ClassVar[dict[type[ops.Op], Callable[..., None]]] = {
        ops.Embed: _embed,
        ops.RmsNorm: _rms_norm,
        ops.Linear: _linear,
        AddingLinear: _linear,
        ops.RopeStoreKV: _rope_store_kv,
        ops.PagedAttention: _paged_attention,
        ops.ActMul: _act_mul,
        ops.GatherRows: _gather_rows,
        ops.Tap: _tap,
        ops.Input: _input,
        ops.NormColumns: _norm_columns,
        ops.AddScaled: _add_scaled,
        ops.Route: _route,
        ops.GroupedLinear: _grouped_linear,
        ops.CombineExperts: _combine_experts,
        ops.ScaleLogits: _scale_logits,
        ops.Sample: _sample,
    }

    # Weights and tables

    def _packed(
        self,
        key: tuple[object, ...],
        weight: Matrix,
        target: WeightFormat,
        order: npt.NDArray[np.intp] | None = None,
    ) -> PackedMatrix:
        """The weight, its rows in `order` if there is one, packed once for all ops that read it."""
        if key not in self.packed:
            found = None if self.kept is None else self.kept.take(_text(key), self.arena)
            if found is None or found.rows != weight.shape[0]:
                found = pack(
                    weight if order is None else weight.take_rows(order), target, self.arena
                )
                if self.kept is not None:
                    self.kept.add(_text(key), found)
            self.packed[key] = found
        return self.packed[key]

    def _packed_table(self, name: WeightName, weight: Matrix) -> PackedMatrix:
        """An embedding table: shared with a linear (the tied LM head) where there is one."""
        for op in self.program.ops:
            if isinstance(op, ops.Linear) and op.weight == name:
                target = weight_format(weight, op.x, wants_int8=self.wants_int8)
                return self._packed((name, 0, target), weight, target)
        is_bf16 = isinstance(weight, DenseWeight) and weight.data.dtype.name == "bfloat16"
        own = own_format(weight, wants_int8=True)
        plain = WeightFormat.BF16 if is_bf16 else WeightFormat.F32
        target = plain if own is None else own
        return self._packed((name, 0, target), weight, target)

    def _vector(self, name: WeightName) -> F32Array:
        # A copy: a view of a mapped file would keep the pages around it in memory.
        return np.array(self.weights[name].dequantize(), dtype=np.float32, order="C")

    def _rope_table(self, rope: ops.Rope) -> tuple[F32Array, F32Array]:
        if rope not in self.rope_tables:
            positions = np.arange(self.max_model_len, dtype=np.float32)
            angles = positions[:, None] * np.asarray(rope.inv_freq, dtype=np.float32)
            cos = (np.cos(angles) * np.float32(rope.scale)).astype(np.float32)
            sin = (np.sin(angles) * np.float32(rope.scale)).astype(np.float32)
            self.rope_tables[rope] = (cos, sin)
        return self.rope_tables[rope]


def _text(key: tuple[object, ...]) -> str:
    return "|".join(str(part) for part in key)


def _gate_and_up_in_turn(width: int) -> npt.NDArray[np.intp]:
    """Rows of gate | up in the order that gives tiles of 32 gates and their 32 inputs in turn."""
    gates = np.arange(width).reshape(-1, GROUP)
    return np.concatenate([gates, gates + width], axis=1).reshape(-1)


def _pad(bias: F32Array) -> F32Array:
    padded = np.zeros(-(-len(bias) // GROUP) * GROUP, np.float32)
    padded[: len(bias)] = bias
    return padded
