"""EAGLE heads, recorded as programs: one decoder layer that guesses from the target's own features.

Terms: a *feature* is what the target model knew after a token (hidden states of one layer, or of
three side by side); the head's input at slot t is the pair (feature of token t - 1, token t), and
its guess there is token t + 1. There is no token before the first: its feature is zero.

A drafting pass further ahead than the target has no feature; it takes the head's own last hidden
state instead. So a program has two inputs, one of which is zero in every row:

    features [T, num_features * hidden]  of the target     (first pass, and catching up)
    hidden   [T, hidden]                 of the pass before

    EAGLE-1     x = fc [embed; norm(features) + hidden]        qkv = W x; no final norm
    EAGLE-3     h = fc features + hidden                       qkv = W [norm(embed); norm(h)]
    both        x or h += attention, norm -> MLP -> added; that sum is the next pass's `hidden`

Products over a concatenation are two products and a sum. The head may guess among fewer tokens
than the target knows: `Sample` then counts draft ids, which whoever runs it translates.

Sources: EAGLE (Li et al., 2024) and EAGLE-3 (Li et al., 2025). Reading checkpoints is
`core.loading.eagle`; drafting is `hasten.spec`. Exercised by `pytest tests/cpu/spec/test_eagle.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hasten.core.models.config import DecoderConfig
from hasten.core.models.decoder import LayerRecorder
from hasten.core.models.kv import KVFormat, kv_groups
from hasten.core.models.weights import EMBED, FINAL_NORM, LM_HEAD, layer_weight
from hasten.kernels.dtypes import DType
from hasten.kernels.ops import AddScaled, Embed, GatherRows, Linear, RmsNorm, Sample
from hasten.kernels.program import Buffer, KVLayer, Program, Rows, WeightName

FEATURES, HIDDEN = "features", "hidden"
"""The inputs; `HIDDEN` is also the tap on the logit rows' own hidden states."""
FC, FC_BIAS = WeightName("fc"), WeightName("fc_bias")
FC_EMBED, FC_HIDDEN = WeightName("fc_embed"), WeightName("fc_hidden")
TARGET_NORM = WeightName("target_norm")
"""The target's final norm: EAGLE-1's features are what its LM head reads."""
QKV_EMBED, QKV_HIDDEN = layer_weight(0, "qkv_embed"), layer_weight(0, "qkv_hidden")
EMBED_NORM, HIDDEN_NORM = layer_weight(0, "embed_norm"), layer_weight(0, "hidden_norm")
POST_NORM = layer_weight(0, "mlp_norm")


class EagleVersion(enum.Enum):
    ONE = 1
    THREE = 3


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """A head in numbers. `layer` is its decoder layer and the target's vocabulary.

    `feature_layers` are the target's layers whose inputs are the features, in the order in which
    they lie side by side (the number of layers: what leaves the last one). With
    `norm_before_residual` EAGLE-3's residual begins after its norm.
    """

    version: EagleVersion
    layer: DecoderConfig
    feature_layers: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    has_fc_bias: bool = False
    norm_before_residual: bool = False

    @property
    def feature_width(self) -> int:
        return len(self.feature_layers) * self.target_hidden_size

    def __post_init__(self) -> None:
        if self.layer.num_layers != 1:
            raise ValueError(f"an EAGLE head has one layer, not {self.layer.num_layers}")
        if self.version is EagleVersion.ONE and len(self.feature_layers) != 1:
            raise ValueError("an EAGLE-1 head reads the features of one layer")
        if not 1 <= self.draft_vocab_size <= self.layer.vocab_size:
            raise ValueError(
                f"draft_vocab_size {self.draft_vocab_size} exceeds {self.layer.vocab_size}"
            )


def build_eagle_program(config: EagleConfig, dtype: DType, kv_dtype: DType) -> Program:
    """Record one pass of the head, from features and token ids to draft ids."""
    kv_format = KVFormat.uniform(config.layer, kv_dtype)
    program = Program(config.draft_vocab_size, kv_groups(config.layer, kv_format))
    layer = LayerRecorder(program, config.layer, 0, dtype)
    recorder = _Recorder(program, config, layer, dtype)
    features = program.input(FEATURES, config.feature_width, dtype)
    hidden = program.input(HIDDEN, config.layer.hidden_size, dtype)
    embedded = layer.buffer("embedded", config.layer.hidden_size)
    program.add(Embed(EMBED, embedded))
    if config.version is EagleVersion.ONE:
        residual, qkv = recorder.enter_one(embedded, features, hidden)
    else:
        residual, qkv = recorder.enter_three(embedded, features, hidden)
    recorder.finish(residual, recorder.layer_output(residual, qkv))
    return program


@dataclass(frozen=True, slots=True)
class _Recorder:
    program: Program
    config: EagleConfig
    layer: LayerRecorder
    dtype: DType

    def enter_one(
        self, embedded: Buffer, features: Buffer, hidden: Buffer
    ) -> tuple[Buffer, Buffer]:
        """The residual and q | k | v of EAGLE-1."""
        normed = self._hidden_buffer("features_normed")
        self._norm(features, TARGET_NORM, normed)
        self.program.add(AddScaled(hidden, normed))
        residual, more = self._hidden_buffer("residual"), self._hidden_buffer("fc_hidden")
        bias = FC_BIAS if self.config.has_fc_bias else None
        self.program.add(Linear(embedded, FC_EMBED, residual, bias))
        self.program.add(Linear(normed, FC_HIDDEN, more))
        self.program.add(AddScaled(more, residual))
        qkv = self.layer.buffer("qkv", self.config.layer.qkv_width)
        self.layer.linear(residual, "qkv", qkv, self.config.layer.qkv_bias)
        return residual, qkv

    def enter_three(
        self, embedded: Buffer, features: Buffer, hidden: Buffer
    ) -> tuple[Buffer, Buffer]:
        """The residual and q | k | v of EAGLE-3."""
        fused, hidden_normed = self._hidden_buffer("fused"), self._hidden_buffer("hidden_normed")
        bias = FC_BIAS if self.config.has_fc_bias else None
        self.program.add(Linear(features, FC, fused, bias))
        eps = self.config.layer.rms_norm_eps
        self.program.add(RmsNorm(fused, HIDDEN_NORM, hidden_normed, eps, residual=hidden))
        embed_normed = self._hidden_buffer("embed_normed")
        self._norm(embedded, EMBED_NORM, embed_normed)
        width = self.config.layer.qkv_width
        qkv, more = self.layer.buffer("qkv", width), self.layer.buffer("qkv_hidden", width)
        bias = self.layer.name("qkv_bias") if self.config.layer.qkv_bias else None
        self.program.add(Linear(embed_normed, QKV_EMBED, qkv, bias))
        self.program.add(Linear(hidden_normed, QKV_HIDDEN, more))
        self.program.add(AddScaled(more, qkv))
        return (hidden_normed if self.config.norm_before_residual else hidden), qkv

    def layer_output(self, residual: Buffer, qkv: Buffer) -> Buffer:
        """The rest of the layer; returns what is still to be added to `residual`."""
        config, kv = self.config.layer, KVLayer(0, 0)
        attention = self.layer.buffer("attention", config.q_width)
        delta = self._hidden_buffer("delta")
        self.layer.rotate_and_store(qkv, kv, None)
        self.layer.read_cache(qkv, attention, kv)
        self.layer.linear(attention, "o", delta, config.o_bias)
        normed = self._hidden_buffer("mlp_normed")
        self.program.add(RmsNorm(delta, POST_NORM, normed, config.rms_norm_eps, residual=residual))
        self.layer.dense_mlp(normed, delta)
        return delta

    def finish(self, residual: Buffer, delta: Buffer) -> None:
        """The logit rows: their hidden states, tapped, and their guesses."""
        program = self.program
        hidden, added = self._logit_rows(residual), self._logit_rows(delta)
        read = hidden
        if self.config.version is EagleVersion.ONE:
            program.add(AddScaled(added, hidden))
        else:
            read = program.buffer("head.normed", Rows.LOGITS, hidden.width, self.dtype)
            eps = self.config.layer.rms_norm_eps
            program.add(RmsNorm(added, FINAL_NORM, read, eps, residual=hidden))
        program.tap(HIDDEN, hidden)
        logits = program.buffer("logits", Rows.LOGITS, self.config.draft_vocab_size, DType.F32)
        program.add(Linear(read, LM_HEAD, logits))
        program.add(Sample(logits))

    def _norm(self, x: Buffer, weight: WeightName, out: Buffer) -> None:
        self.program.add(RmsNorm(x, weight, out, self.config.layer.rms_norm_eps))

    def _hidden_buffer(self, name: str) -> Buffer:
        return self.layer.buffer(name, self.config.layer.hidden_size)

    def _logit_rows(self, source: Buffer) -> Buffer:
        gathered = self.program.buffer(f"head.{source.name}", Rows.LOGITS, source.width, self.dtype)
        self.program.add(GatherRows(source, gathered))
        return gathered
