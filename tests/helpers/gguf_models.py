"""transformers' tiny models written as GGUF files, as llama.cpp's converters would write them.

Names come from the `gguf` package's own tables, so they check ours. The rest is what the converters
do: Gemma's norms get their 1, q and k of some architectures are interleaved, experts are stacked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType

from tests.helpers.gguf_files import add_value

F32 = npt.NDArray[np.float32]

ARCHITECTURES = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
INTERLEAVED = (MODEL_ARCH.LLAMA, MODEL_ARCH.GRANITE, MODEL_ARCH.SMOLLM3)


def write_gguf_model(
    path: Path,
    model: Any,
    family: str,
    metadata: dict[str, Any],
    extra_tensors: dict[str, F32] | None = None,
    tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> None:
    """Write `model` as the architecture `family`; `metadata` adds to what all families have."""
    arch = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, family)
    for key, value in {**_common_metadata(model.config), **metadata}.items():
        add_value(writer, f"{family}.{key}", value)
    for name, values in {**_converted(model, arch), **(extra_tensors or {})}.items():
        stored = tensor_type if values.ndim > 1 else GGMLQuantizationType.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(values), stored)
        writer.add_tensor(name, packed, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _common_metadata(config: Any) -> dict[str, Any]:
    head_size = getattr(config, "head_dim", None)
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if head_size is not None:
        values |= {"attention.key_length": head_size, "attention.value_length": head_size}
    return values


def _converted(model: Any, arch: MODEL_ARCH) -> dict[str, F32]:
    config = model.config
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors: dict[str, F32] = {}
    for key, values in _checkpoint_tensors(model).items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        tensors[name] = _convert(key, values, config, arch)
    return tensors


def _checkpoint_tensors(model: Any) -> dict[str, F32]:
    """The model's tensors; the fused one of all experts' gate | up taken apart."""
    found: dict[str, F32] = {}
    for key, tensor in model.state_dict().items():
        values: F32 = tensor.float().numpy()
        if key.endswith("experts.gate_up_proj"):
            layer = key.removesuffix("gate_up_proj")
            gate, up = np.split(values, 2, axis=1)
            found[f"{layer}gate_proj.weight"], found[f"{layer}up_proj.weight"] = gate, up
        elif key.endswith("experts.down_proj"):
            found[f"{key}.weight"] = values
        else:
            found[key] = values
    return found


def _convert(key: str, values: F32, config: Any, arch: MODEL_ARCH) -> F32:
    if "gemma" in MODEL_ARCH_NAMES[arch] and key.endswith("norm.weight"):
        return values + 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(key.split(".")[-2])
    if arch in INTERLEAVED and count is not None:
        rows = values.reshape(count, 2, -1, *values.shape[1:])
        interleaved: F32 = rows.swapaxes(1, 2).reshape(values.shape)
        return interleaved
    return values
