"""Which weights a decoder has, and from which checkpoint tensors each is made.

A weight is one or several tensors stacked along their outputs (q | k | v, gate | up). Tensors are
named as Hugging Face checkpoints name them; other formats translate. Each matrix also declares how
it is cut over devices that share a layer.
Exercised by `pytest tests/unit/loading/test_decoder.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hasten.core.models.config import DecoderConfig
from hasten.kernels.program import WeightName
from hasten.kernels.weights import Split


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint: its key and the shape it must have."""

    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of the program. `quantizable` ones are what `--quantization` converts."""

    name: WeightName
    parts: tuple[TensorSpec, ...]
    split: Split
    quantizable: bool = False


EMBED = WeightName("embed")
FINAL_NORM = WeightName("final_norm")
LM_HEAD = WeightName("lm_head")
LM_HEAD_KEY = "lm_head.weight"
EMBED_KEY = "model.embed_tokens.weight"


def layer_weight(layer_idx: int, name: str) -> WeightName:
    """The name of a weight of one layer, as in `layers.3.qkv`."""
    return WeightName(f"layers.{layer_idx}.{name}")


def weight_specs(config: DecoderConfig) -> Iterator[WeightSpec]:
    """Every weight of the model, in the order in which a step reads them."""
    table = (config.vocab_size, config.hidden_size)
    yield WeightSpec(EMBED, (TensorSpec(EMBED_KEY, table),), Split.REPLICATED)
    for layer_idx in range(config.num_layers):
        yield from _layer_specs(config, layer_idx)
    norm = TensorSpec("model.norm.weight", (config.hidden_size,))
    yield WeightSpec(FINAL_NORM, (norm,), Split.REPLICATED)
    if not config.tie_word_embeddings:
        yield WeightSpec(LM_HEAD, (TensorSpec(LM_HEAD_KEY, table),), Split.COLUMN)


def _layer_specs(config: DecoderConfig, layer_idx: int) -> Iterator[WeightSpec]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    q, kv = config.q_width, config.kv_width
    layer = _Layer(layer_idx)
    yield layer.vector("input_norm", "input_layernorm", hidden)
    qkv = (("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
    yield from layer.linear("qkv", qkv, hidden, Split.COLUMN, config.qkv_bias)
    if config.qk_norm:
        yield layer.vector("q_norm", "self_attn.q_norm", config.head_size)
        yield layer.vector("k_norm", "self_attn.k_norm", config.head_size)
    yield from layer.linear("o", (("self_attn.o_proj", hidden),), q, Split.ROW, config.o_bias)
    yield layer.vector("post_attention_norm", "post_attention_layernorm", hidden)
    gate_up = (("mlp.gate_proj", mlp), ("mlp.up_proj", mlp))
    yield from layer.linear("gate_up", gate_up, hidden, Split.COLUMN, config.mlp_bias)
    yield from layer.linear("down", (("mlp.down_proj", hidden),), mlp, Split.ROW, config.mlp_bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    layer_idx: int

    def vector(self, name: str, module: str, width: int) -> WeightSpec:
        tensor = TensorSpec(self._key(module, "weight"), (width,))
        return WeightSpec(layer_weight(self.layer_idx, name), (tensor,), Split.REPLICATED)

    def linear(
        self,
        name: str,
        modules: tuple[tuple[str, int], ...],
        in_features: int,
        split: Split,
        has_bias: bool,
    ) -> Iterator[WeightSpec]:
        """The matrix, made of (module, outputs) parts, and its bias if it has one."""
        matrices = tuple(
            TensorSpec(self._key(module, "weight"), (out, in_features)) for module, out in modules
        )
        yield WeightSpec(layer_weight(self.layer_idx, name), matrices, split, quantizable=True)
        if has_bias:
            biases = tuple(TensorSpec(self._key(module, "bias"), (out,)) for module, out in modules)
            # Row-split products are summed over devices; their bias is added once, after that.
            bias_split = Split.REPLICATED if split is Split.ROW else split
            yield WeightSpec(layer_weight(self.layer_idx, f"{name}_bias"), biases, bias_split)

    def _key(self, module: str, kind: str) -> str:
        return f"model.layers.{self.layer_idx}.{module}.{kind}"
