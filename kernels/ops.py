"""The op table: every operation a step program may contain, named once.

Each op is a frozen dataclass that names the buffers it reads and writes, its weights and its
constants; its docstring is its definition. A backend implements ops and says why it cannot take a
case. All ops write into buffers that they are given. Shapes: T rows are the step's tokens, L its
logit rows (see `kernels.program`); `x[r]` is row r.

Numerics shared by all: a row's result never depends on which or how many rows run with it.

Run `hasten check` to compare a backend with the reference over this whole table.
"""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import ClassVar

from hasten.kernels.program import Buffer, KVLayer, Rows, WeightName


class Activation(enum.StrEnum):
    """The gate's non-linearity."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding in the half-split layout: pairs are (i, i + rotary_dim / 2).

    angle[p, i] = p * inv_freq[i], computed in fp32; cos and sin are multiplied by `scale`.
    Columns from `rotary_dim` on pass through unrotated. Source: RoFormer (Su et al., 2021).
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)


@dataclass(frozen=True, slots=True)
class Op(abc.ABC):
    """What all ops have: the buffers and weights they touch, and a check of their shapes."""

    name: ClassVar[str]

    @abc.abstractmethod
    def reads(self) -> tuple[Buffer, ...]:
        """The buffers whose contents matter."""

    @abc.abstractmethod
    def writes(self) -> tuple[Buffer, ...]:
        """The buffers that it changes."""

    def weights(self) -> tuple[WeightName, ...]:
        return ()

    def check(self) -> None:  # noqa: B027 (not abstract: some ops take operands of any shape)
        """Raise ValueError when the operands' shapes do not fit together."""


def _require(condition: bool, op: str, what: str) -> None:
    if not condition:
        raise ValueError(f"{op}: {what}")


@dataclass(frozen=True, slots=True)
class Embed(Op):
    """out[t] = table[token_ids[t]] * scale."""

    name: ClassVar[str] = "embed"
    table: WeightName
    out: Buffer
    scale: float = 1.0

    def reads(self) -> tuple[Buffer, ...]:
        return ()

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def weights(self) -> tuple[WeightName, ...]:
        return (self.table,)


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    """out = y * rsqrt(mean(y^2) + eps) * weight, where y = x, or y = residual += x, rounded first.

    The sum of squares is fp32. With `residual`, that buffer holds y afterwards.
    """

    name: ClassVar[str] = "rms_norm"
    x: Buffer
    weight: WeightName
    out: Buffer
    eps: float
    residual: Buffer | None = None

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,) if self.residual is None else (self.out, self.residual)

    def weights(self) -> tuple[WeightName, ...]:
        return (self.weight,)

    def check(self) -> None:
        widths = {buffer.width for buffer in (*self.reads(), *self.writes())}
        _require(len(widths) == 1, self.name, f"widths differ: {sorted(widths)}")


@dataclass(frozen=True, slots=True)
class NormColumns(Op):
    """x[:, start:stop] = y * rsqrt(mean(y^2) + eps) * weight, y being those columns, in place.

    The norm of q or of k over all heads together. The sum of squares is fp32.
    """

    name: ClassVar[str] = "norm_columns"
    x: Buffer
    weight: WeightName
    start: int
    stop: int
    eps: float

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def weights(self) -> tuple[WeightName, ...]:
        return (self.weight,)

    def check(self) -> None:
        inside = 0 <= self.start < self.stop <= self.x.width
        _require(inside, self.name, f"no columns {self.start} to {self.stop} in {self.x.width}")


@dataclass(frozen=True, slots=True)
class AddScaled(Op):
    """out += scale * x, in fp32, rounded once."""

    name: ClassVar[str] = "add_scaled"
    x: Buffer
    out: Buffer
    scale: float = 1.0

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x, self.out)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        _require(self.x.width == self.out.width, self.name, "widths differ")
        _require(self.x.rows == self.out.rows, self.name, "x and out have different row symbols")


@dataclass(frozen=True, slots=True)
class Linear(Op):
    """out = x @ W^T (+ bias), W of any weight scheme, [out.width, x.width].

    Accumulates in fp32 (integer schemes: exact int32 per group, then fp32 in group order) and
    rounds once to out's dtype. An fp8 weight with an activation scheme first replaces x by
    s * e4m3(x / s), clamped to +-448: s = max|x| / 448 over the row, or over each group of 128
    inputs of it, in fp32 (1 where that is 0), or the weight's static `input_scale`. A backend
    without fp8 products may leave x as it is, which is nearer to the unquantised model.
    """

    name: ClassVar[str] = "linear"
    x: Buffer
    weight: WeightName
    out: Buffer
    bias: WeightName | None = None

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def weights(self) -> tuple[WeightName, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def check(self) -> None:
        _require(self.x.rows == self.out.rows, self.name, "x and out have different row symbols")


@dataclass(frozen=True, slots=True)
class RopeStoreKV(Op):
    """Normalise (optional) and rotate q and k of `qkv`, then write k and v to the cache.

    `qkv` is [T, (num_heads + 2 num_kv_heads) head_size], laid out q | k | v. q is rotated in
    place; the rotated k, and v, go to the slots of the step's slot mapping for the layer's group.
    `q_norm` and `k_norm` are RMS norms over each head's columns, before the rotation.

    An fp8 cache stores e4m3(x / s), clamped to +-448, and s in bf16, for K and for V of each token
    and head: s = max|x| / 448 (1 where that is 0), or `kv_scales` (K, V) if the model brings them.
    """

    name: ClassVar[str] = "rope_store_kv"
    qkv: Buffer
    kv: KVLayer
    num_heads: int
    num_kv_heads: int
    head_size: int
    rope: Rope
    q_norm: WeightName | None = None
    k_norm: WeightName | None = None
    norm_eps: float = 1e-6
    kv_scales: tuple[float, float] | None = None

    def reads(self) -> tuple[Buffer, ...]:
        return (self.qkv,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.qkv,)

    def weights(self) -> tuple[WeightName, ...]:
        return tuple(name for name in (self.q_norm, self.k_norm) if name is not None)

    def check(self) -> None:
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        _require(self.qkv.width == width, self.name, f"qkv is {self.qkv.width} wide, not {width}")
        _require(self.rope.rotary_dim <= self.head_size, self.name, "rotary_dim exceeds head_size")


@dataclass(frozen=True, slots=True)
class PagedAttention(Op):
    """Causal attention of the step's queries over the paged cache; every case of it.

    For token t of request r at position p, and head h sharing KV head h // (num_heads /
    num_kv_heads): softmax over cache positions j in (p - window, p] of scale * q.k_j, passed
    through softcap * tanh(./softcap) when `softcap` is set, times v_j. `sinks` adds one learned
    logit per head to the denominator. K and V are always read from the cache, never from `qkv`.
    The KV is walked in tiles of fixed length from position 0 and summed in that order.
    """

    name: ClassVar[str] = "paged_attention"
    qkv: Buffer
    out: Buffer
    kv: KVLayer
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: WeightName | None = None

    def reads(self) -> tuple[Buffer, ...]:
        return (self.qkv,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def weights(self) -> tuple[WeightName, ...]:
        return () if self.sinks is None else (self.sinks,)

    def check(self) -> None:
        _require(self.num_heads % self.num_kv_heads == 0, self.name, "heads do not divide")
        _require(
            self.out.width == self.num_heads * self.head_size, self.name, "out has wrong width"
        )


@dataclass(frozen=True, slots=True)
class ActMul(Op):
    """out = act(x[:, :w]) * x[:, w:], x being [T, 2 w] laid out gate | up."""

    name: ClassVar[str] = "act_mul"
    x: Buffer
    out: Buffer
    activation: Activation

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        _require(self.x.width == 2 * self.out.width, self.name, "x is not twice as wide as out")


@dataclass(frozen=True, slots=True)
class Route(Op):
    """The experts of each token: out = ids | weights, [T, 2 num_active], most likely first.

    The weights are the largest entries of softmax(logits), logits being [T, num_experts], lowest
    id first among equals; `renormalize` divides them by their sum. Ids are stored as whole numbers.
    Source: Mixtral of Experts (Jiang et al., 2024), section 2.1.
    """

    name: ClassVar[str] = "route"
    logits: Buffer
    out: Buffer
    num_active: int
    renormalize: bool

    def reads(self) -> tuple[Buffer, ...]:
        return (self.logits,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        _require(1 <= self.num_active <= self.logits.width, self.name, "more active than experts")
        _require(self.out.width == 2 * self.num_active, self.name, "out has wrong width")


@dataclass(frozen=True, slots=True)
class GroupedLinear(Op):
    """out[t] = x_j W[e_j]^T for each expert e_j that `routing` gives token t, j < num_active.

    W is [num_experts * num_parts * n, k]: experts one under the other, each of `num_parts` matrices
    of n outputs (gate, up). x is [T, k], the same for all experts of a token, or
    [T, num_active * k]. out is laid out by part, then by expert: column (p * num_active + j) * n
    begins part p of e_j. Sums as in `Linear`.
    """

    name: ClassVar[str] = "grouped_linear"
    x: Buffer
    routing: Buffer
    weight: WeightName
    out: Buffer
    num_experts: int
    num_active: int
    num_parts: int = 1

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x, self.routing)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def weights(self) -> tuple[WeightName, ...]:
        return (self.weight,)

    @property
    def part_width(self) -> int:
        """Outputs of one part of one expert."""
        return self.out.width // (self.num_active * self.num_parts)

    def check(self) -> None:
        whole = self.part_width * self.num_active * self.num_parts
        _require(self.out.width == whole, self.name, "out does not divide by experts and parts")
        _require(self.routing.width == 2 * self.num_active, self.name, "routing has wrong width")


@dataclass(frozen=True, slots=True)
class CombineExperts(Op):
    """out = sum over j of weight_j * x_j, in rank order in fp32; x is [T, num_active * width]."""

    name: ClassVar[str] = "combine_experts"
    x: Buffer
    routing: Buffer
    out: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x, self.routing)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        width = self.out.width * self.routing.width
        _require(2 * self.x.width == width, self.name, "x is not num_active times as wide as out")


@dataclass(frozen=True, slots=True)
class GatherRows(Op):
    """out[l] = x[logit_rows[l]]: the head of the program starts here, with L rows."""

    name: ClassVar[str] = "gather_rows"
    x: Buffer
    out: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        _require(self.x.rows is Rows.TOKENS, self.name, "x must have T rows")
        _require(self.out.rows is Rows.LOGITS, self.name, "out must have L rows")
        _require(self.x.width == self.out.width, self.name, "widths differ")


@dataclass(frozen=True, slots=True)
class Input(Op):
    """out = the rows that the caller gave for this step (`Executable.set_input`)."""

    name: ClassVar[str] = "input"
    out: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return ()

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        _require(self.out.rows is Rows.TOKENS, self.name, "inputs have T rows")


@dataclass(frozen=True, slots=True)
class Tap(Op):
    """out = x, kept until the next step and readable by the caller (`Executable.tap`)."""

    name: ClassVar[str] = "tap"
    x: Buffer
    out: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.x,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.out,)

    def check(self) -> None:
        _require(self.x.width == self.out.width, self.name, "widths differ")


@dataclass(frozen=True, slots=True)
class ScaleLogits(Op):
    """logits = softcap * tanh(scale * logits / softcap), in place; without softcap, only scaled."""

    name: ClassVar[str] = "scale_logits"
    logits: Buffer
    scale: float = 1.0
    softcap: float | None = None

    def reads(self) -> tuple[Buffer, ...]:
        return (self.logits,)

    def writes(self) -> tuple[Buffer, ...]:
        return (self.logits,)


@dataclass(frozen=True, slots=True)
class Sample(Op):
    """One token per logit row, as the row's `SamplingRows` record asks; the last op of a program.

    Steps, in this order, on fp32 logits:

    1. log-probabilities, where asked for, are log_softmax of the raw logits;
    2. penalties: repetition (divide positive, multiply negative logits of tokens seen in prompt or
       output), then frequency * count and presence of output tokens are subtracted;
    3. `bias` entries are added (-inf forbids); tokens outside the row's mask are forbidden;
    4. temperature 0: the argmax, lowest id first among equals. Otherwise divide by temperature,
       then keep: p >= min_p * max p; the top_k most likely; the smallest set, most likely first,
       whose mass reaches top_p (at least one; ties broken by lowest id; each filter renormalises
       over what the one before it kept);
    5. argmax of what is kept plus Gumbel noise -log(-log(u)), u = (philox + 0.5) / 2^32.

    Noise: Philox4x32-10 (Salmon et al., 2011), key = the 64-bit seed (low word, high word), counter
    = (position, token_id // 4, sample_idx, 0), word token_id % 4. It depends on nothing else.
    Verification of drafts is this op too: one row per drafted position. Source of the coupling:
    drafter-invariant speculative decoding (Daliri, Musco, Suresh, 2024).

    A row with `target_ids[l] >= 0` takes that token instead (scoring a prompt).
    """

    name: ClassVar[str] = "sample"
    logits: Buffer

    def reads(self) -> tuple[Buffer, ...]:
        return (self.logits,)

    def writes(self) -> tuple[Buffer, ...]:
        return ()

    def check(self) -> None:
        _require(self.logits.rows is Rows.LOGITS, self.name, "logits must have L rows")
