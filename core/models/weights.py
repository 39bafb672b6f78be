"""Which weights a decoder has, and from which checkpoint tensors each is made.

A weight is one or several tensors stacked along their outputs (q | k | v, gate | up, expert after
expert). Tensors are named as Hugging Face checkpoints name them; other formats translate. Each
matrix also declares how it is cut over devices that share a layer.
Exercised by `pytest tests/unit/loading/test_decoder.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hasten.core.models.config import DecoderConfig, Experts, NormPlacement
from hasten.kernels.program import WeightName
from hasten.kernels.weights import Split


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint: its key and the shape it must have."""

    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of the program. `quantizable` ones are what `--quantization` converts.

    `offset` is added to the numbers of the checkpoint.
    """

    name: WeightName
    parts: tuple[TensorSpec, ...]
    split: Split
    quantizable: bool = False
    offset: float = 0.0


EMBED = WeightName("embed")
FINAL_NORM = WeightName("final_norm")
LM_HEAD = WeightName("lm_head")
LM_HEAD_KEY = "lm_head.weight"
EMBED_KEY = "model.embed_tokens.weight"

BLOCK_NORMS: dict[NormPlacement, dict[str, str]] = {
    NormPlacement.BEFORE: {
        "input_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    },
    NormPlacement.AFTER: {
        "post_attention_norm": "post_attention_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
    NormPlacement.AROUND: {
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "post_mlp_norm": "post_feedforward_layernorm",
    },
}
"""The norms of a layer's blocks and the modules that checkpoints keep them in."""


def layer_weight(layer_idx: int, name: str) -> WeightName:
    """The name of a weight of one layer, as in `layers.3.qkv`."""
    return WeightName(f"layers.{layer_idx}.{name}")


def weight_specs(config: DecoderConfig) -> Iterator[WeightSpec]:
    """Every weight of the model, layer by layer."""
    table = (config.vocab_size, config.hidden_size)
    yield WeightSpec(EMBED, (TensorSpec(EMBED_KEY, table),), Split.REPLICATED)
    for layer_idx in range(config.num_layers):
        yield from _layer_specs(config, layer_idx)
    norm = TensorSpec("model.norm.weight", (config.hidden_size,))
    yield WeightSpec(FINAL_NORM, (norm,), Split.REPLICATED, offset=config.norm_offset)
    if not config.tie_word_embeddings:
        yield WeightSpec(LM_HEAD, (TensorSpec(LM_HEAD_KEY, table),), Split.COLUMN)


def _layer_specs(config: DecoderConfig, layer_idx: int) -> Iterator[WeightSpec]:
    layer = _Layer(layer_idx, config.norm_offset)
    for name, module in BLOCK_NORMS[config.norms].items():
        yield layer.norm(name, module, config.hidden_size)
    yield from _attention_specs(config, layer)
    if config.experts is None:
        yield from _mlp_specs(config, layer)
    else:
        yield from _expert_specs(config.experts, config.hidden_size, layer)


def _attention_specs(config: DecoderConfig, layer: _Layer) -> Iterator[WeightSpec]:
    hidden, q, kv = config.hidden_size, config.q_width, config.kv_width
    parts: Modules = (("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
    if config.fused_projections:
        parts = (("self_attn.qkv_proj", config.qkv_width),)
    yield from layer.linear("qkv", parts, hidden, Split.COLUMN, config.qkv_bias)
    if config.qk_norm or config.joint_qk_norm:
        widths = (q, kv) if config.joint_qk_norm else (config.head_size,) * 2
        yield layer.norm("q_norm", "self_attn.q_norm", widths[0])
        yield layer.norm("k_norm", "self_attn.k_norm", widths[1])
    yield from layer.linear("o", (("self_attn.o_proj", hidden),), q, Split.ROW, config.o_bias)


def _mlp_specs(config: DecoderConfig, layer: _Layer) -> Iterator[WeightSpec]:
    hidden, mlp, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
    parts: Modules = (("mlp.gate_proj", mlp), ("mlp.up_proj", mlp))
    if config.fused_projections:
        parts = (("mlp.gate_up_proj", 2 * mlp),)
    yield from layer.linear("gate_up", parts, hidden, Split.COLUMN, has_bias)
    yield from layer.linear("down", (("mlp.down_proj", hidden),), mlp, Split.ROW, has_bias)


def _expert_specs(experts: Experts, hidden: int, layer: _Layer) -> Iterator[WeightSpec]:
    """Router and experts; whole experts would go to devices, which `Split` does not say yet."""
    block, gate, up, down = experts.tensor_names
    mlp, ids = experts.intermediate_size, range(experts.num_experts)
    yield layer.matrix("router", ((f"{block}.gate", experts.num_experts),), hidden)
    gate_up = [(f"{block}.experts.{idx}.{name}", mlp) for idx in ids for name in (gate, up)]
    yield layer.matrix("expert_gate_up", gate_up, hidden, quantizable=True)
    downs = [(f"{block}.experts.{idx}.{down}", hidden) for idx in ids]
    yield layer.matrix("expert_down", downs, mlp, quantizable=True)


Modules = Sequence[tuple[str, int]]
"""The modules of a checkpoint that make up one matrix, each with its number of outputs."""


@dataclass(frozen=True, slots=True)
class _Layer:
    layer_idx: int
    norm_offset: float

    def norm(self, name: str, module: str, width: int) -> WeightSpec:
        tensor = TensorSpec(self._key(module, "weight"), (width,))
        weight = layer_weight(self.layer_idx, name)
        return WeightSpec(weight, (tensor,), Split.REPLICATED, offset=self.norm_offset)

    def matrix(
        self,
        name: str,
        modules: Modules,
        in_features: int,
        split: Split = Split.REPLICATED,
        quantizable: bool = False,
    ) -> WeightSpec:
        parts = tuple(
            TensorSpec(self._key(module, "weight"), (out, in_features)) for module, out in modules
        )
        return WeightSpec(layer_weight(self.layer_idx, name), parts, split, quantizable)

    def linear(
        self, name: str, modules: Modules, in_features: int, split: Split, has_bias: bool
    ) -> Iterator[WeightSpec]:
        """The matrix, and its bias if it has one."""
        yield self.matrix(name, modules, in_features, split, quantizable=True)
        if has_bias:
            biases = tuple(TensorSpec(self._key(module, "bias"), (out,)) for module, out in modules)
            # Row-split products are summed over devices; their bias is added once, after that.
            bias_split = Split.REPLICATED if split is Split.ROW else split
            yield WeightSpec(layer_weight(self.layer_idx, f"{name}_bias"), biases, bias_split)

    def _key(self, module: str, kind: str) -> str:
        return f"model.layers.{self.layer_idx}.{module}.{kind}"
