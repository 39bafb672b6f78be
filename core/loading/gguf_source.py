"""The tensors of a GGUF file under the names and in the row order of Hugging Face checkpoints.

Two things differ. Names: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`. Rows:
converting to the `llama` architecture interleaves the rows of q and k (row 2 j + s of a head holds
rotary component j of half s), and is undone here, for packed rows as well, since a row is a whole
number of blocks. Exercised by `pytest tests/unit/loading/test_gguf.py`.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
from hasten.core.loading.errors import LoadError
from hasten.core.loading.gguf_config import ROPE_FREQS
from hasten.core.loading.gguf_file import GGUFFile
from hasten.core.models.config import DecoderConfig
from hasten.kernels.weights import DenseWeight, Matrix
from hasten.quant.gguf_blocks import decode

_LAYER_NAME = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(.+)\.(weight|bias)")

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_LAYER_KEY = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_GGUF_TOP_NAMES = {key: name for name, key in _TOP_NAMES.items()}
_GGUF_MODULES = {module: name for name, module in _MODULES.items()}


class GGUFSource:
    """A `TensorSource` over an open GGUF file."""

    def __init__(self, file: GGUFFile, config: DecoderConfig) -> None:
        self.where = str(file.path)
        self._config = config
        self._local_names = {checkpoint_name(name): name for name in file.tensors}
        self._tensors = {
            checkpoint_name(name): tensor
            for name, tensor in file.tensors.items()
            if name != ROPE_FREQS  # read with the configuration
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: tensor.shape for key, tensor in self._tensors.items()}

    def local_name(self, key: str) -> str:
        return self._local_names.get(key) or gguf_name(key)

    def read(self, key: str) -> Matrix:
        tensor = self._tensors[key]
        try:
            weight: Matrix = decode(tensor.type, tensor.raw)
        except ValueError as error:
            raise LoadError(f"{self.where}: tensor {tensor.name!r}: {error}") from error
        if self._config.family == "llama":
            weight = self._undo_interleaving(key, weight)
        return _as_vector(weight) if len(tensor.shape) == 1 else weight

    def _undo_interleaving(self, key: str, weight: Matrix) -> Matrix:
        if ".self_attn.q_proj." in key:
            num_heads = self._config.num_heads
        elif ".self_attn.k_proj." in key:
            num_heads = self._config.num_kv_heads
        else:
            return weight
        if key.endswith(".bias"):
            weight = DenseWeight(_as_vector(weight).data[:, None])
        return weight.take_rows(half_split_rows(num_heads, self._config.head_size))


def checkpoint_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; unknown names stay as they are."""
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _MODULES:
        return _TOP_NAMES.get(name, name)
    return f"model.layers.{int(match[1])}.{_MODULES[match[2]]}.{match[3]}"


def gguf_name(key: str) -> str:
    """The inverse of `checkpoint_name`."""
    match = _LAYER_KEY.fullmatch(key)
    if match is None or match[2] not in _GGUF_MODULES:
        return _GGUF_TOP_NAMES.get(key, key)
    return f"blk.{match[1]}.{_GGUF_MODULES[match[2]]}.{match[3]}"


def half_split_rows(num_heads: int, head_size: int) -> npt.NDArray[np.intp]:
    """For each row in half-split order, the row that holds it in interleaved order."""
    rows = np.arange(num_heads * head_size).reshape(num_heads, head_size // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _as_vector(weight: Matrix) -> DenseWeight:
    values = weight.data if isinstance(weight, DenseWeight) else weight.dequantize()
    return DenseWeight(values.reshape(-1))
