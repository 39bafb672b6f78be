"""EAGLE heads from checkpoints, in the layouts in which they are published.

    SafeAILab EAGLE-1   config.json of a one-layer Llama; fc.* and layers.0.*, without input norm
    SafeAILab EAGLE-3,  the same with `draft_vocab_size`; fc, midlayer.*, norm, lm_head, d2t, t2d;
    SpecForge           SpecForge may name the feature layers in `eagle_config`
    speculators         config.json with `speculators_model_type` and `transformer_layer_config`;
                        layers.0.* for midlayer.*; for EAGLE-1 fusion_fc.*, transformer.*

d2t[i] is the target's id of draft id i, less i. Weights lie in model.safetensors, or in
pytorch_model.bin, which needs torch. What a head does not bring (embedding, LM head, and EAGLE-1's
final norm) is the target's; of the LM head those rows that d2t names.

Matrices are served in integers: of 8 bits, or of as many as `weight_bits` says in `eagle_config`, 4
for a head that learnt with weights so rounded; a whole LM head of the target as the target has it.

Exercised by `pytest tests/cpu/spec/test_eagle.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields, read_json_object
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.loading.safetensors_files import SafetensorsFiles, open_safetensors
from hasten.core.models import eagle
from hasten.core.models.config import DecoderConfig
from hasten.core.models.eagle import EagleConfig, EagleVersion
from hasten.core.models.weights import EMBED, FINAL_NORM, LM_HEAD, layer_weight
from hasten.kernels.program import WeightName
from hasten.kernels.step import I32
from hasten.kernels.weights import DenseWeight, StackedWeight, Weight
from hasten.quant.grouped_int import GROUP_SIZE, quantize_int4, quantize_int8

TORCH_FILE = "pytorch_model.bin"
RENAMED = {
    "transformer.": "layers.0.",
    "midlayer.": "layers.0.",
    "fusion_fc.": "fc.",
}
"""Prefixes of the layouts, and what they are here."""
IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "t2d")
"""Constants, and the mask of d2t's image."""
UNSUPPORTED_FLAGS = ("layernorms", "norm_before_fc", "fc_norm", "norm_output")
"""Variants of the layouts that are refused by name."""
WEIGHT_BITS = "weight_bits"


@dataclass(frozen=True, slots=True)
class EagleHead:
    """A head ready to be recorded. `draft_ids` [draft_vocab_size] are the target's ids, or None."""

    config: EagleConfig
    weights: Mapping[WeightName, Weight]
    draft_ids: I32 | None


@dataclass(frozen=True, slots=True)
class Target:
    """What a head takes from the model that it drafts for."""

    config: DecoderConfig
    weights: Mapping[WeightName, Weight]

    @property
    def lm_head(self) -> Weight:
        return self.weights[EMBED if self.config.tie_word_embeddings else LM_HEAD]


def load_eagle(folder: Path, target: Target) -> EagleHead:
    """Read the head in `folder`, for `target`. Its linears become integers (`served_matrix`).

    Raises LoadError naming what is missing, unsupported or made for another model.
    """
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder}: holds no config.json")
    tensors = _tensors(folder)
    values = read_json_object(folder / "config.json")
    config = _config(values, str(folder), tensors, target.config)
    num_bits = _weight_bits(Fields(values, str(folder)))
    reader = _Reader(str(folder), dict(tensors), config, num_bits)
    draft_ids = reader.draft_ids()
    weights = reader.weights(target, draft_ids)
    reader.refuse_rest()
    return EagleHead(config, weights, draft_ids)


def _tensors(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every tensor, by its name in the layout of `RENAMED`."""
    if (folder / TORCH_FILE).is_file() and not (folder / "model.safetensors").is_file():
        found = _read_torch(folder / TORCH_FILE)
    else:
        files: SafetensorsFiles = open_safetensors(folder)
        found = {key: stored.array() for key, stored in files.tensors.items()}
    return {
        _renamed(key): array for key, array in found.items() if not key.endswith(IGNORED_SUFFIXES)
    }


def _read_torch(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    try:
        import torch
    except ImportError as error:
        raise LoadError(f"{path}: needs torch to be read; convert it to safetensors") from error
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return {
        key: (value.float() if value.is_floating_point() else value).numpy()
        for key, value in loaded.items()
    }


def _renamed(key: str) -> str:
    for old, new in RENAMED.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


def _config(
    values: dict[str, Any],
    where: str,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    target: DecoderConfig,
) -> EagleConfig:
    fields = Fields(values, where)
    for flag in UNSUPPORTED_FLAGS:
        fields.refuse_unless(flag, (False,))
    version = EagleVersion.THREE if "layers.0.hidden_norm.weight" in tensors else EagleVersion.ONE
    layer = _layer_config(values, where)
    has_draft_vocab = "draft_vocab_size" in fields and version is EagleVersion.THREE
    config = EagleConfig(
        version=version,
        layer=replace(layer, num_layers=1, windows=(None,), tie_word_embeddings=False),
        feature_layers=_feature_layers(fields, version, target),
        target_hidden_size=target.hidden_size,
        draft_vocab_size=fields.integer("draft_vocab_size")
        if has_draft_vocab
        else layer.vocab_size,
        has_fc_bias="fc.bias" in tensors,
        norm_before_residual="norm_before_residual" in fields
        and fields.boolean("norm_before_residual"),
    )
    if layer.vocab_size != target.vocab_size:
        raise fields.error(
            "vocab_size", f"is {layer.vocab_size}, but the model's is {target.vocab_size}"
        )
    return config


def _layer_config(values: dict[str, Any], where: str) -> DecoderConfig:
    """The head's layer is Llama's, whatever the layout calls the whole."""
    nested = values.get("transformer_layer_config", values)
    if not isinstance(nested, dict):
        raise LoadError(f"{where}: field 'transformer_layer_config' must be an object")
    return read_hf_config(Fields({**nested, "architectures": ["LlamaForCausalLM"]}, where))


def _feature_layers(
    fields: Fields, version: EagleVersion, target: DecoderConfig
) -> tuple[int, ...]:
    """The layers named, or those that the EAGLE papers' code takes."""
    if version is EagleVersion.ONE:
        return (target.num_layers,)
    name = "eagle_aux_hidden_state_layer_ids"
    owner = fields.nested("eagle_config") if "eagle_config" in fields else fields
    if name in owner:
        layers = owner.integers(name)
    else:
        layers = (2, target.num_layers // 2, target.num_layers - 3)
    if any(not 0 <= idx <= target.num_layers for idx in layers):
        raise fields.error(name, f"{list(layers)}: the model has {target.num_layers} layers")
    return layers


def _weight_bits(fields: Fields) -> int:
    owner = fields.nested("eagle_config") if "eagle_config" in fields else fields
    if WEIGHT_BITS not in owner:
        return 8
    owner.refuse_unless(WEIGHT_BITS, (4, 8))
    return owner.integer(WEIGHT_BITS)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes the tensors one by one; what remains at the end belongs to nothing."""

    where: str
    tensors: dict[str, np.ndarray[Any, Any]]
    config: EagleConfig
    num_bits: int

    def weights(self, target: Target, draft_ids: I32 | None) -> dict[WeightName, Weight]:
        config, hidden = self.config, self.config.layer.hidden_size
        weights: dict[WeightName, Weight] = dict(self._layer())
        weights[EMBED] = self._embedding(target)
        if config.has_fc_bias:
            weights[eagle.FC_BIAS] = self._vector("fc.bias", hidden)
        if config.version is EagleVersion.ONE:
            fc = self._take("fc.weight", (hidden, 2 * hidden))
            weights[eagle.FC_EMBED] = self._matrix(fc[:, :hidden])
            weights[eagle.FC_HIDDEN] = self._matrix(fc[:, hidden:])
            weights[eagle.TARGET_NORM] = target.weights[FINAL_NORM]
            weights[LM_HEAD] = target.lm_head
            self.tensors.pop("lm_head.weight", None)
        else:
            fc = self._take("fc.weight", (hidden, config.feature_width))
            weights[eagle.FC] = self._matrix(fc)
            weights[FINAL_NORM] = self._vector("norm.weight", hidden)
            weights[LM_HEAD] = self._lm_head(target, draft_ids)
        return weights

    def _lm_head(self, target: Target, draft_ids: I32 | None) -> Weight:
        config, hidden = self.config, self.config.layer.hidden_size
        key = "lm_head.weight"
        if key in self.tensors:
            return self._matrix(self._take(key, (config.draft_vocab_size, hidden)))
        if hidden != config.target_hidden_size:
            raise LoadError(f"{self.where}: tensor {key!r} is missing")
        if draft_ids is None:
            return target.lm_head
        assert not isinstance(target.lm_head, StackedWeight), "LM heads are one matrix"
        rows = target.lm_head.take_rows(draft_ids.astype(np.intp))
        return rows if self.num_bits == 8 else self._matrix(rows.dequantize())

    def draft_ids(self) -> I32 | None:
        """Raises LoadError where d2t is missing or leads out of the vocabulary."""
        config, found = self.config, None
        if "d2t" in self.tensors:
            size = config.draft_vocab_size
            found = self._take("d2t", (size,)).astype(np.int64) + np.arange(size)
            if found.min() < 0 or found.max() >= config.layer.vocab_size:
                raise LoadError(f"{self.where}: tensor 'd2t' leads out of the vocabulary")
        elif config.draft_vocab_size != config.layer.vocab_size:
            raise LoadError(f"{self.where}: tensor 'd2t' is missing")
        return None if found is None else found.astype(np.int32)

    def refuse_rest(self) -> None:
        """Raises LoadError where tensors are left over."""
        if self.tensors:
            raise LoadError(f"{self.where}: tensor {next(iter(self.tensors))!r} is not of a head")

    def _embedding(self, target: Target) -> Weight:
        layer = self.config.layer
        if "embed_tokens.weight" in self.tensors:
            shape = layer.vocab_size, layer.hidden_size
            return DenseWeight(self._take("embed_tokens.weight", shape))
        if layer.hidden_size != target.config.hidden_size:
            raise LoadError(f"{self.where}: tensor 'embed_tokens.weight' is missing")
        return target.weights[EMBED]

    def _layer(self) -> dict[WeightName, Weight]:
        layer, hidden = self.config.layer, self.config.layer.hidden_size
        is_three = self.config.version is EagleVersion.THREE
        q, kv, mlp = layer.q_width, layer.kv_width, layer.intermediate_size
        attention = (("q_proj", q), ("k_proj", kv), ("v_proj", kv))
        qkv = self._stacked("self_attn", attention, hidden * (2 if is_three else 1))
        weights: dict[WeightName, Weight] = {
            layer_weight(0, "o"): self._matrix(self._take(_key("self_attn.o_proj"), (hidden, q))),
            layer_weight(0, "gate_up"): self._matrix(
                self._stacked("mlp", (("gate_proj", mlp), ("up_proj", mlp)), hidden)
            ),
            layer_weight(0, "down"): self._matrix(self._take(_key("mlp.down_proj"), (hidden, mlp))),
            eagle.POST_NORM: self._vector(_key("post_attention_layernorm"), hidden),
        }
        if layer.qkv_bias:
            biases = [
                self._take(_key(f"self_attn.{name}", "bias"), (out,)) for name, out in attention
            ]
            weights[layer_weight(0, "qkv_bias")] = DenseWeight(np.concatenate(biases))
        if not is_three:
            return weights | {layer_weight(0, "qkv"): self._matrix(qkv)}
        return weights | {
            eagle.QKV_EMBED: self._matrix(qkv[:, :hidden]),
            eagle.QKV_HIDDEN: self._matrix(qkv[:, hidden:]),
            eagle.EMBED_NORM: self._vector(_key("input_layernorm"), hidden),
            eagle.HIDDEN_NORM: self._vector(_key("hidden_norm"), hidden),
        }

    def _stacked(
        self, module: str, parts: tuple[tuple[str, int], ...], width: int
    ) -> np.ndarray[Any, Any]:
        return np.concatenate(
            [self._take(_key(f"{module}.{name}"), (out, width)) for name, out in parts]
        )

    def _matrix(self, array: np.ndarray[Any, Any]) -> Weight:
        return served_matrix(array, self.num_bits)

    def _vector(self, key: str, width: int) -> DenseWeight:
        return DenseWeight(self._take(key, (width,)).copy())

    def _take(self, key: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        array = self.tensors.pop(key, None)
        if array is None:
            raise LoadError(f"{self.where}: tensor {key!r} is missing")
        if array.shape != shape:
            raise LoadError(
                f"{self.where}: tensor {key!r} has shape {list(array.shape)}, not {list(shape)}"
            )
        return array


def _key(module: str, kind: str = "weight") -> str:
    return f"layers.0.{module}.{kind}"


def served_matrix(array: np.ndarray[Any, Any], num_bits: int) -> Weight:
    """Integers of so many bits in groups of 32 inputs, or the array where those do not divide.

    Of 8 bits they are nearly exact, and half of what would be read.
    """
    weight = DenseWeight(np.ascontiguousarray(array))
    if array.shape[1] % GROUP_SIZE:
        return weight
    return quantize_int4(weight) if num_bits == 4 else quantize_int8(weight)
