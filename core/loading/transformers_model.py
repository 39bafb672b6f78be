"""Loading a directory through the transformers library (`--model-impl transformers`).

For models that are not recorded natively: their step is two foreign nodes around the gather of the
rows that want logits. Code that a directory may bring is never run.
Exercised by `pytest tests/cpu/models/test_transformers.py`.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from hasten.core.loading.errors import LoadError
from hasten.core.loading.fields import read_json
from hasten.core.loading.fingerprint import fingerprint
from hasten.core.loading.model import LoadedModel, directory_info
from hasten.core.loading.safetensors_files import open_safetensors
from hasten.core.models.config import NO_ROPE, DecoderConfig
from hasten.core.models.kv import KVFormat
from hasten.kernels.dtypes import DType
from hasten.kernels.foreign import ForeignAttention, ForeignBody, ForeignHead
from hasten.kernels.ops import GatherRows, PagedAttention, RopeStoreKV, Sample
from hasten.kernels.program import KVGroupSpec, KVLayer, Program, Rows, WeightName
from hasten.kernels.weights import DenseWeight

if TYPE_CHECKING:
    from collections.abc import Collection

    from hasten.core.loading.locate import ModelLocation
    from hasten.core.models.foreign import AttentionNeeds, TransformersModule
    from hasten.kernels.program import Buffer

_TORCH_DTYPES = {DType.BF16: torch.bfloat16, DType.F32: torch.float32}


@dataclass(frozen=True, slots=True)
class ForeignModel(LoadedModel):
    """A model that keeps its own weights; `weights` holds attention sinks, where it has them.

    Of `config` only the sizes are meant: nothing is recorded from it. Recording a program converts
    the module to the program's dtype, in place, so only the latest one is good to run.
    """

    module: TransformersModule | None = None
    module_bytes: int = 0
    module_numbers: int = 0

    @property
    def num_bytes(self) -> int:
        return self.module_bytes

    @property
    def num_numbers(self) -> int:
        return self.module_numbers

    def kv_format(self, dtype: DType) -> KVFormat:
        """Raises LoadError for fp8, which nobody has probed for these models."""
        if dtype is DType.FP8_E4M3:
            raise LoadError("--kv-cache-dtype fp8 needs --model-impl native")
        return KVFormat.uniform(self.config, dtype)

    def build_program(
        self,
        activation_dtype: DType,
        kv: DType | KVFormat,
        feature_layers: Collection[int] = (),
    ) -> Program:
        if feature_layers:
            raise LoadError("an EAGLE head needs --model-impl native")
        module = self.module
        assert module is not None
        module.to(_TORCH_DTYPES[activation_dtype])
        kv_format = self.kv_format(kv) if isinstance(kv, DType) else kv
        specs = [
            _group_spec(needs, dtype)
            for needs, dtype in zip(module.layers, kv_format.dtypes, strict=True)
        ]
        program = Program(self.config.vocab_size, _grouped(specs))
        hidden = program.buffer("hidden", Rows.TOKENS, self.config.hidden_size, activation_dtype)
        layers = tuple(
            _record_attention(program, idx, needs, _place(specs, idx), activation_dtype)
            for idx, needs in enumerate(module.layers)
        )
        program.add(ForeignBody(module, hidden, layers))
        _record_head(program, module, hidden)
        return program


def load_transformers(location: ModelLocation) -> ForeignModel:
    """Raises LoadError when the directory is damaged, or the model cannot run in a step."""
    from hasten.core.models.foreign import TransformersModule, UnsupportedModelError

    if location.is_gguf:
        raise LoadError(f"{location.path}: --model-impl transformers needs a model directory")
    fields = read_json(location.path / "config.json")
    model = _from_pretrained(location)
    parameters = list(model.parameters())
    try:
        module = TransformersModule(model)
    except UnsupportedModelError as error:
        kind = type(model).__name__
        raise LoadError(
            f"{location.path}: transformers' {kind} cannot run here: {error}"
        ) from error
    config = _sizes(model, module)
    sinks = {
        _sinks_name(idx): DenseWeight(needs.sinks.detach().float().numpy())
        for idx, needs in enumerate(module.layers)
        if needs.sinks is not None
    }
    return ForeignModel(
        info=directory_info(location, fields, config),
        weights=sinks,
        content_hash=_content_hash(location),
        module=module,
        module_bytes=sum(parameter.nbytes for parameter in parameters),
        module_numbers=sum(parameter.numel() for parameter in parameters),
    )


def _from_pretrained(location: ModelLocation) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library: Any = importlib.import_module("transformers")
        library.utils.logging.disable_progress_bar()
        try:
            model, report = library.AutoModelForCausalLM.from_pretrained(
                location.path,
                dtype="auto",
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:  # (whatever transformers raises is about the directory)
            problem = " ".join(str(error).split())
            raise LoadError(f"{location.path}: transformers cannot load it: {problem}") from error
    for kind, keys in report.items():
        for key in sorted(map(str, keys)) if kind.endswith("_keys") else ():
            raise LoadError(f"{location.path}: tensor {key!r}: {kind.removesuffix('_keys')}")
    return model


def _sizes(model: Any, module: TransformersModule) -> DecoderConfig:
    config, first = model.config.get_text_config(), module.layers[0]
    hidden_size = model.get_input_embeddings().embedding_dim
    return DecoderConfig(
        family=f"transformers:{config.model_type}",
        vocab_size=model.get_output_embeddings().out_features,
        hidden_size=hidden_size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * hidden_size,
        num_layers=len(module.layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_size=first.head_size,
        max_position_embeddings=int(config.max_position_embeddings),
        rms_norm_eps=1e-6,
        rope=NO_ROPE,
        windows=tuple(needs.window for needs in module.layers),
    )


def _content_hash(location: ModelLocation) -> str:
    import transformers

    files = open_safetensors(location.path)
    config = (location.path / "config.json").read_bytes()
    version = f"transformers {transformers.__version__}".encode()
    headers = (version, config, *files.headers)
    return fingerprint(headers, (stored.raw for stored in files.tensors.values()))


def _group_spec(needs: AttentionNeeds, dtype: DType) -> KVGroupSpec:
    """The KV group of a layer, as if it were its only one."""
    return KVGroupSpec(1, needs.num_kv_heads, needs.head_size, dtype, needs.window)


def _grouped(specs: list[KVGroupSpec]) -> tuple[KVGroupSpec, ...]:
    return tuple(
        KVGroupSpec(specs.count(spec), spec.num_kv_heads, spec.head_size, spec.dtype, spec.window)
        for spec in dict.fromkeys(specs)
    )


def _place(specs: list[KVGroupSpec], layer_idx: int) -> KVLayer:
    group_id = list(dict.fromkeys(specs)).index(specs[layer_idx])
    return KVLayer(group_id, specs[:layer_idx].count(specs[layer_idx]))


def _sinks_name(layer_idx: int) -> WeightName:
    return WeightName(f"layers.{layer_idx}.sinks")


def _record_attention(
    program: Program, layer_idx: int, needs: AttentionNeeds, kv: KVLayer, dtype: DType
) -> ForeignAttention:
    """The ops of one layer; q and k come rotated, so nothing is left to rotate."""
    heads = needs.num_heads, needs.num_kv_heads, needs.head_size
    q_width, width = heads[0] * heads[2], (heads[0] + 2 * heads[1]) * heads[2]
    qkv = program.shared_buffer(f"qkv.{width}", Rows.TOKENS, width, dtype)
    out = program.shared_buffer(f"attention.{q_width}", Rows.TOKENS, q_width, dtype)
    sinks = None if needs.sinks is None else _sinks_name(layer_idx)
    return ForeignAttention(
        RopeStoreKV(qkv, kv, *heads, rope=NO_ROPE),
        PagedAttention(
            qkv,
            out,
            kv,
            *heads,
            scale=needs.scale,
            window=needs.window,
            softcap=needs.softcap,
            sinks=sinks,
        ),
    )


def _record_head(program: Program, module: TransformersModule, hidden: Buffer) -> None:
    rows = program.buffer("head.hidden", Rows.LOGITS, hidden.width, hidden.dtype)
    logits = program.buffer("logits", Rows.LOGITS, program.vocab_size, DType.F32)
    program.add(GatherRows(hidden, rows))
    program.add(ForeignHead(module, rows, logits))
    program.add(Sample(logits))
