"""Integer checkpoints decoded in torch, once more and apart from the product's formats.

Layouts as published by the tools: AutoAWQ's gemm, GPTQ v1, compressed-tensors' pack-quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A checkpoint's tensors by their plain names, and which of the linears were quantised."""

    state: dict[str, torch.Tensor]
    quantized: frozenset[str]


def decode_folder(folder: Path) -> Decoded:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    state, quantized = {}, set()
    for name, tensor in tensors.items():
        linear, _, last = name.rpartition(".")
        if last in ("qweight", "weight_packed"):
            decode = decode_packed if last == "weight_packed" else decode_qweight
            state[f"{linear}.weight"] = decode(tensors, linear)
            quantized.add(linear)
        elif last in ("weight", "bias"):
            if tensor.dtype is torch.float8_e4m3fn:
                raise ValueError(f"{folder}: {name} is fp8; only integers are decoded here")
            state[name] = tensor
    return Decoded(state, frozenset(quantized))


def codes_in(words: torch.Tensor, bits: int) -> torch.Tensor:
    """i32 [..., n] as codes [..., n, 32 / bits], lowest bits first."""
    shifts = torch.arange(0, 32, bits)
    codes: torch.Tensor = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return codes


def decode_qweight(tensors: Tensors, linear: str) -> torch.Tensor:
    """AutoAWQ's gemm or GPTQ's v1, told apart by which dimension is packed; [out, in] fp32."""
    packed = tensors[f"{linear}.qweight"]
    scales = tensors[f"{linear}.scales"].float()
    zeros = codes_in(tensors[f"{linear}.qzeros"], 4)
    if packed.shape[1] == scales.shape[1]:  # [in / 8, out]: GPTQ
        codes = codes_in(packed, 4).transpose(1, 2).reshape(-1, packed.shape[1])
        group = tensors[f"{linear}.g_idx"].long()
        zeros = zeros.reshape(scales.shape) + 1
    else:
        codes = ordered(codes_in(packed, 4)).reshape(packed.shape[0], -1)
        zeros = ordered(zeros).reshape(scales.shape)
        group = torch.arange(len(codes)) // (len(codes) // len(scales))
    return ((codes - zeros[group]) * scales[group]).T.contiguous()


def ordered(codes: torch.Tensor) -> torch.Tensor:
    """AutoAWQ's nibble i belongs to column AWQ_ORDER[i] of its eight."""
    columns = torch.empty_like(codes)
    columns[..., AWQ_ORDER] = codes
    return columns


def decode_packed(tensors: Tensors, linear: str) -> torch.Tensor:
    """compressed-tensors' integers, [out, in] fp32."""
    out, width = tensors[f"{linear}.weight_shape"].tolist()
    packed = tensors[f"{linear}.weight_packed"]
    bits = 32 * packed.shape[1] // width
    codes = codes_in(packed, bits).reshape(out, -1)[:, :width]
    scale = tensors[f"{linear}.weight_scale"].float()
    zero = torch.full(scale.shape, 2 ** (bits - 1))
    if f"{linear}.weight_zero_point" in tensors:
        words = codes_in(tensors[f"{linear}.weight_zero_point"], bits)
        zero = words.transpose(1, 2).reshape(-1, scale.shape[1])[:out]
    group = torch.arange(width) // (width // scale.shape[1])
    return (codes - zero[:, group]) * scale[:, group]
