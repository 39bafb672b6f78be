"""Small GGUF files written with the `gguf` package: the loading tests' material and oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

F32 = npt.NDArray[np.float32]

HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, MLP, VOCAB, LAYERS = 64, 4, 2, 16, 96, 128, 2

DEFAULT_TOKENS = ["<unk>", "<s>", "</s>", *(chr(0x100 + idx) for idx in range(VOCAB - 3))]


@dataclass(slots=True)
class TinyGGUF:
    """What to write; `tensors` are added to (or, when None, left out of) the model's own."""

    family: str = "llama"
    tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, F32 | None] = field(default_factory=dict)


def random_weights(spec: TinyGGUF, seed: int = 0) -> dict[str, F32]:
    """The model's tensors under their GGUF names, rows in Hugging Face order."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> F32:
        return random.standard_normal(shape).astype(np.float32) * np.float32(0.1)

    q, kv = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    weights = {"token_embd.weight": normal(VOCAB, HIDDEN), "output_norm.weight": normal(HIDDEN)}
    if not spec.tied:
        weights["output.weight"] = normal(VOCAB, HIDDEN)
    for layer in (f"blk.{idx}." for idx in range(LAYERS)):
        weights[f"{layer}attn_norm.weight"] = normal(HIDDEN)
        weights[f"{layer}ffn_norm.weight"] = normal(HIDDEN)
        for name, out in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
            weights[f"{layer}{name}.weight"] = normal(out, HIDDEN)
            if spec.qkv_bias:
                weights[f"{layer}{name}.bias"] = normal(out)
        if spec.qk_norm:
            weights[f"{layer}attn_q_norm.weight"] = normal(HEAD_SIZE)
            weights[f"{layer}attn_k_norm.weight"] = normal(HEAD_SIZE)
        weights[f"{layer}attn_output.weight"] = normal(HIDDEN, q)
        weights[f"{layer}ffn_gate.weight"] = normal(MLP, HIDDEN)
        weights[f"{layer}ffn_up.weight"] = normal(MLP, HIDDEN)
        weights[f"{layer}ffn_down.weight"] = normal(HIDDEN, MLP)
    return weights


def interleave(rows: F32, num_heads: int) -> F32:
    """The row order that converting to the llama architecture gives q and k."""
    halves = rows.reshape(num_heads, 2, HEAD_SIZE // 2, -1)
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, spec: TinyGGUF | None = None) -> dict[str, F32]:
    """Write the file; returns what a reader must find: dequantised, rows in Hugging Face order."""
    spec = spec or TinyGGUF()
    writer = gguf.GGUFWriter(path, spec.family)
    _write_metadata(writer, spec)
    expected = {}
    for name, values in {**random_weights(spec), **spec.tensors}.items():
        if values is not None:
            expected[name] = _write_tensor(writer, spec, name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


def _write_metadata(writer: gguf.GGUFWriter, spec: TinyGGUF) -> None:
    prefix = f"{spec.family}."
    values: dict[str, Any] = {
        f"{prefix}block_count": LAYERS,
        f"{prefix}context_length": 256,
        f"{prefix}embedding_length": HIDDEN,
        f"{prefix}feed_forward_length": MLP,
        f"{prefix}attention.head_count": HEADS,
        f"{prefix}attention.head_count_kv": KV_HEADS,
        f"{prefix}attention.layer_norm_rms_epsilon": 1e-5,
        f"{prefix}rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": DEFAULT_TOKENS,
        "tokenizer.ggml.eos_token_id": 2,
        **spec.metadata,
    }
    for key, value in values.items():
        if value is not None:
            add_value(writer, key, value)


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add one metadata value by its Python type."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _write_tensor(writer: gguf.GGUFWriter, spec: TinyGGUF, name: str, values: F32) -> F32:
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
    stored = interleave(values, heads) if heads and spec.family == "llama" else values
    is_matrix = values.ndim == 2
    tensor_type = spec.tensor_type if is_matrix else GGMLQuantizationType.F32
    packed = gguf.quants.quantize(stored, tensor_type)
    writer.add_tensor(name, packed, raw_dtype=tensor_type)
    read_back: F32 = gguf.quants.dequantize(packed, tensor_type).reshape(stored.shape)
    return undo_interleave(read_back, heads) if heads and spec.family == "llama" else read_back


def undo_interleave(rows: F32, num_heads: int) -> F32:
    """The inverse of `interleave`, row by row: slow and obvious."""
    result = np.empty_like(rows)
    for head in range(num_heads):
        for half in range(2):
            for pair in range(HEAD_SIZE // 2):
                target = head * HEAD_SIZE + half * HEAD_SIZE // 2 + pair
                result[target] = rows[head * HEAD_SIZE + 2 * pair + half]
    return result


def as_mapping(path: Path) -> Mapping[str, Any]:
    """A file's metadata as the `gguf` package reads it."""
    reader = gguf.GGUFReader(path)
    return {key: value.contents() for key, value in reader.fields.items()}
