"""Loading a model: from a reference to configuration and weights.

`read_model_info` reads headers and JSON only (milliseconds); `load_model` also brings the weights.
Neither imports torch or transformers. Exercised by `pytest tests/unit/loading tests/cpu/models`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import Fields, read_json, read_json_object
from hasten.core.loading.fingerprint import fingerprint
from hasten.core.loading.gguf_config import read_gguf_config
from hasten.core.loading.gguf_file import GGUFFile, open_gguf
from hasten.core.loading.gguf_source import GGUFSource
from hasten.core.loading.hf_config import read_hf_config
from hasten.core.loading.locate import ModelLocation, locate_model
from hasten.core.loading.quantize import LoadTimeQuantization
from hasten.core.loading.quantized_source import QuantizedSource
from hasten.core.loading.safetensors_files import (
    SafetensorsFiles,
    SafetensorsSource,
    open_safetensors,
)
from hasten.core.loading.source import TensorSource, read_weights
from hasten.core.models import DecoderConfig, KVFormat, build_program, weight_specs
from hasten.core.models.weights import EMBED_KEY, LM_HEAD_KEY
from hasten.kernels.dtypes import DType
from hasten.kernels.program import Program, WeightName
from hasten.kernels.weights import Weight

logger = logging.getLogger(__name__)

ROTARY_BUFFER = ".rotary_emb.inv_freq"
"""A constant that old exports of Llama stored among the weights of each layer."""


DEFAULT_RANGES = (
    ("temperature", 0.0, 2.0),
    ("top_p", 1e-6, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-6, math.inf),
)
"""Recommended sampling parameters and what `GenerationParams` would take of them."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model without its weights.

    `generation_defaults` are the sampling parameters that the model's authors recommend, by the
    names of `GenerationParams`; `eos_token_ids` end an answer.
    """

    name: str
    path: Path
    config: DecoderConfig
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float | int]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory (mapped where no conversion was needed).

    `content_hash` identifies the weights (see `fingerprint`) and how they were quantised;
    `kv_scales` are static scales of K and V by layer, for those that the checkpoint brings them.
    """

    info: ModelInfo
    weights: Mapping[WeightName, Weight]
    content_hash: str
    kv_scales: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def config(self) -> DecoderConfig:
        return self.info.config

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.info.eos_token_ids

    @property
    def generation_defaults(self) -> Mapping[str, float | int]:
        return self.info.generation_defaults

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights together."""
        return sum(weight.num_bytes for weight in self.weights.values())

    @property
    def num_numbers(self) -> int:
        """Elements of all weights together."""
        return sum(math.prod(weight.shape) for weight in self.weights.values())

    @property
    def share_of_bf16(self) -> float:
        """`num_bytes` over what the same numbers, the LM head's included, take in bf16."""
        return self.num_bytes / (2 * self.num_numbers)

    def kv_format(self, dtype: DType) -> KVFormat:
        """All layers' caches in `dtype`; in fp8 with the checkpoint's static scales, if any."""
        scales = self.kv_scales if dtype is DType.FP8_E4M3 else {}
        return KVFormat((dtype,) * self.config.num_layers, scales)

    def build_program(
        self,
        activation_dtype: DType,
        kv: DType | KVFormat,
        feature_layers: Collection[int] = (),
    ) -> Program:
        """The model's step, recorded for activations and a KV cache of these types.

        See `core.models.build_program` for `feature_layers`.
        """
        kv_format = self.kv_format(kv) if isinstance(kv, DType) else kv
        return build_program(self.config, activation_dtype, kv_format, feature_layers)


def read_model_info(reference: str) -> ModelInfo:
    """What is known of the model `reference` from its headers. Raises LoadError."""
    location = locate_model(reference)
    if location.is_gguf:
        return _gguf_info(location, open_gguf(location.path))
    return _directory_info(location)


def load_model(
    reference: str,
    *,
    quantization: str | None = None,
    quantize_lm_head: bool = False,
    max_model_len: int | None = None,
    model_impl: str = "native",
) -> LoadedModel:
    """Load `embedded`, a Hugging Face directory or a .gguf file.

    `model_impl` "transformers" runs a directory's model with the transformers library.

    `quantization` ("fp8", "int4", "int8") converts the linear layers, with `quantize_lm_head` the
    head too. `max_model_len` bounds the requests that will come, where that is known: LongRoPE
    models rotate by other angles if none can be long. Raises LoadError, with one line that names
    the file, tensor, field or option concerned.
    """
    if quantization is None and quantize_lm_head:
        raise LoadError("--quantize-lm-head says nothing without --quantization")
    conversion = (
        None if quantization is None else LoadTimeQuantization(quantization, quantize_lm_head)
    )
    location = locate_model(reference)
    if model_impl == "transformers":
        return _load_transformers(location, quantization)
    load = _load_gguf if location.is_gguf else _load_directory
    model = load(location, max_model_len)
    if max_model_len is not None and model.config != read_model_info(reference).config:
        model = replace(model, content_hash=f"{model.content_hash}-short_rope")
    if conversion is None:
        return model
    weights = conversion.apply(weight_specs(model.config), model.weights)
    content_hash = f"{model.content_hash}-{conversion.key}"
    return replace(model, weights=weights, content_hash=content_hash)


def _load_transformers(location: ModelLocation, quantization: str | None) -> LoadedModel:
    if quantization is not None:
        raise LoadError(f"--quantization {quantization} needs --model-impl native")
    from hasten.core.loading.transformers_model import load_transformers

    return load_transformers(location)


def _load_gguf(location: ModelLocation, max_model_len: int | None) -> LoadedModel:
    file = open_gguf(location.path)
    info = _gguf_info(location, file, max_model_len)
    weights = read_weights(weight_specs(info.config), GGUFSource(file, info.config))
    content_hash = fingerprint((file.header,), (tensor.raw for tensor in file.tensors.values()))
    return LoadedModel(info, weights, content_hash)


def _gguf_info(
    location: ModelLocation, file: GGUFFile, max_model_len: int | None = None
) -> ModelInfo:
    fields = Fields(file.metadata, str(file.path))
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    eos = dict.fromkeys(fields.integer(key, minimum=0) for key in keys if key in fields)
    config = read_gguf_config(file, max_model_len)
    return ModelInfo(location.name, location.path, config, _checked_eos(tuple(eos), config), {})


def _load_directory(location: ModelLocation, max_model_len: int | None) -> LoadedModel:
    info = _directory_info(location, max_model_len)
    files = open_safetensors(location.path)
    source = _source(location, files, _ignored_tensors(files, info.config))
    weights = read_weights(weight_specs(info.config), source)
    headers = ((location.path / "config.json").read_bytes(), *files.headers)
    content_hash = fingerprint(headers, (stored.raw for stored in files.tensors.values()))
    kv_scales = source.kv_scales() if isinstance(source, QuantizedSource) else {}
    return LoadedModel(info, weights, content_hash, kv_scales)


def _source(
    location: ModelLocation, files: SafetensorsFiles, ignored: frozenset[str]
) -> TensorSource:
    """The tensors, through the format that the configuration names if they are quantised."""
    config = read_json_object(location.path / "config.json").get("quantization_config")
    if config is None:
        return SafetensorsSource(files, ignored)
    if not isinstance(config, dict):
        raise LoadError(
            f"{location.path / 'config.json'}: field 'quantization_config' is no object"
        )
    return QuantizedSource(files, config, ignored)


def _directory_info(location: ModelLocation, max_model_len: int | None = None) -> ModelInfo:
    fields = read_json(location.path / "config.json")
    return directory_info(location, fields, read_hf_config(fields, max_model_len))


def directory_info(location: ModelLocation, fields: Fields, config: DecoderConfig) -> ModelInfo:
    """What a directory says beside its numbers; `fields` are those of its config.json."""
    generation_path = location.path / "generation_config.json"
    generation = (
        read_json(generation_path)
        if generation_path.is_file()
        else Fields({}, str(generation_path))
    )
    owner = generation if "eos_token_id" in generation else fields
    eos = owner.integers("eos_token_id") if "eos_token_id" in owner else ()
    return ModelInfo(
        location.name,
        location.path,
        config,
        _checked_eos(eos, config),
        _generation_defaults(generation),
    )


def _checked_eos(eos_token_ids: tuple[int, ...], config: DecoderConfig) -> tuple[int, ...]:
    """Without ids outside the vocabulary, which nothing could ever choose."""
    known = tuple(idx for idx in eos_token_ids if 0 <= idx < config.vocab_size)
    if len(known) < len(eos_token_ids):
        logger.warning("eos_token_id %s: not all are in the vocabulary", list(eos_token_ids))
    return known


def _generation_defaults(fields: Fields) -> dict[str, float | int]:
    found: dict[str, float | int] = {
        name: _default_in_range(fields, name, low, high)
        for name, low, high in DEFAULT_RANGES
        if name in fields
    }
    if "top_k" in fields:
        found["top_k"] = fields.integer("top_k", minimum=0)
    return found


def _default_in_range(fields: Fields, name: str, low: float, high: float) -> float:
    value = fields.number(name, above=-math.inf)
    if not low <= value <= high:
        raise fields.error(name, f"must be from {low} to {high}, got {value}")
    return value


def _ignored_tensors(files: SafetensorsFiles, config: DecoderConfig) -> frozenset[str]:
    """Tensors that say nothing new: rotary constants, and a tied head stored a second time.

    Raises LoadError when the stored head differs from the embedding it is said to be.
    """
    ignored = {key for key in files.tensors if key.endswith(ROTARY_BUFFER)}
    head, embed = files.tensors.get(LM_HEAD_KEY), files.tensors.get(EMBED_KEY)
    if config.tie_word_embeddings and head is not None and embed is not None:
        if head.raw.tobytes() != embed.raw.tobytes():
            raise LoadError(
                f"{head.path}: tensor {LM_HEAD_KEY!r} differs from the embedding, "
                "though field 'tie_word_embeddings' is true"
            )
        ignored.add(LM_HEAD_KEY)
    return frozenset(ignored)
