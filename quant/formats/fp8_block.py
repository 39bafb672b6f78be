"""Hugging Face `fp8` checkpoints: e4m3 weights, scaled per 128x128 block or per tensor.

Per linear `weight` e4m3 [out, in], and

    with `weight_block_size`   weight_scale_inv [ceil(out / 128), ceil(in / 128)], a multiplier
    without                    weight_scale, one number; with static activations input_scale too

Source: DeepSeek-V3's published checkpoints and transformers' FineGrainedFP8Config for the first,
AutoFP8 for the second. Exercised by `pytest tests/unit/quant/test_format_configs.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasten.kernels.weights import FP8_GROUP, ActivationScheme, Fp8Weight
from hasten.quant.formats.base import FormatError, KVScales, Tensors, scalar, take
from hasten.quant.formats.config import ConfigReader
from hasten.quant.formats.fp8_tensors import fp8_linears, read_kv_scales, tensor_scale


@dataclass(frozen=True, slots=True)
class HuggingFaceFp8Format:
    """One such checkpoint. `plain` are the modules that the configuration leaves unquantised."""

    blockwise: bool
    activations: ActivationScheme
    plain: tuple[str, ...] = ()
    name: str = "fp8"

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> HuggingFaceFp8Format:
        config = ConfigReader(values)
        config.choose("quant_method", ("fp8",))
        config.choose("fmt", ("e4m3",), "e4m3")
        config.choose("scale_fmt", (None, "float"), None)
        config.choose("dequantize", (False,), False)
        config.choose("kv_cache_scheme", (None, "static"), None)
        blocks = config.choose("weight_block_size", (None, [FP8_GROUP, FP8_GROUP]), None)
        scheme = config.choose("activation_scheme", ("dynamic", "static"))
        if blocks and scheme == "static":
            raise config.error("activation_scheme", "static contradicts weight_block_size")
        left_out = ("modules_to_not_convert", "ignored_layers", "ignore")
        plain = [name for key in left_out for name in config.take(key, list, [])]
        config.finish()
        return cls(blocks is not None, _activations(scheme, blocks is not None), tuple(plain))

    def linears(self, tensors: Tensors) -> dict[str, tuple[str, ...]]:
        parts = ["weight", "weight_scale_inv" if self.blockwise else "weight_scale"]
        if self.activations is ActivationScheme.STATIC:
            parts.append("input_scale")
        found = {}
        for linear in fp8_linears(tensors):
            if linear in self.plain:
                raise FormatError(
                    f"quantization_config.modules_to_not_convert: names {linear}, "
                    "but its weight is fp8"
                )
            found[linear] = tuple(f"{linear}.{part}" for part in parts)
        return found

    def shape(self, tensors: Tensors, linear: str) -> tuple[int, int]:
        out, in_features = take(tensors, f"{linear}.weight", (-1, -1)).shape
        return out, in_features

    def read(self, tensors: Tensors, linear: str) -> Fp8Weight:
        out, in_features = self.shape(tensors, linear)
        data = tensors[f"{linear}.weight"]
        if not self.blockwise:
            scale = tensor_scale(tensors, f"{linear}.weight_scale")
            static = self.activations is ActivationScheme.STATIC
            input_scale = scalar(tensors, f"{linear}.input_scale") if static else None
            return Fp8Weight(data, scale, (out, in_features), self.activations, input_scale)
        expected = -(-out // FP8_GROUP), -(-in_features // FP8_GROUP)
        scale = take(tensors, f"{linear}.weight_scale_inv", expected)
        return Fp8Weight(data, scale, (FP8_GROUP, FP8_GROUP), self.activations)

    def kv_scales(self, tensors: Tensors) -> dict[str, KVScales]:
        return read_kv_scales(tensors)


def _activations(scheme: str, blockwise: bool) -> ActivationScheme:
    if scheme == "static":
        return ActivationScheme.STATIC
    return ActivationScheme.TOKEN_GROUP if blockwise else ActivationScheme.TOKEN
