"""GPTQ checkpoints, v1 and v2: 4 or 8 bit, symmetric or not, with or without act-order.

With p = 32 / bits codes per word and g = group size, per linear:

    qweight i32 [in / p, out]     code i of word r is row p r + i
    qzeros  i32 [in / g, out / p] zero points, in v1 minus 1
    scales  f16 [in / g, out]
    g_idx   i32 [in]              each input's group; consecutive unless act-order made it

Source: the quantised linear layers of AutoGPTQ and GPTQModel. Exercised by
`pytest tests/unit/quant/test_formats_packed.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import GroupedIntWeight, Matrix
from hasten.quant.formats.base import (
    FormatError,
    KVScales,
    Tensors,
    check_groups,
    linears_by_suffix,
    take,
)
from hasten.quant.formats.config import ConfigReader
from hasten.quant.integers import (
    I32Array,
    codes_of,
    make_grouped,
    pack_words,
    unpack_words,
    zeros_of,
)

ZERO_SHIFT = {"gptq": 1, "gptq_v2": 0}
"""What the versions subtract from a zero point before they store it."""

_INFORMATION = (
    "meta", "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "dataset",
    "tokenizer", "model_name_or_path", "model_file_base_name", "use_exllama", "exllama_config",
    "max_input_length", "batch_size", "pad_token_id", "cache_block_outputs", "model_seqlen",
    "block_name_to_quantize", "module_name_preceding_first_block", "use_cuda_fp16", "backend",
    "modules_in_block_to_quantize", "disable_exllama", "act_group_aware", "mse", "use_safetensors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GptqLayer:
    """What the configuration says of one linear."""

    bits: int
    group_size: int
    sym: bool = True
    desc_act: bool = False


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """One GPTQ checkpoint. `overrides` are patterns of modules with settings of their own."""

    default: GptqLayer
    version: str = "gptq"
    overrides: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    name: str = "gptq"

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> GptqFormat:
        config = ConfigReader(values)
        config.choose("quant_method", ("gptq",))
        config.choose("method", ("gptq",), "gptq")
        versions = {
            key: config.choose(key, tuple(ZERO_SHIFT))
            for key in ("checkpoint_format", "format")
            if values.get(key) is not None
        }
        if len(set(versions.values())) > 1:
            raise config.error("checkpoint_format", f"contradicts itself: {versions}")
        config.choose("pack_dtype", ("int32",), "int32")
        config.choose("is_marlin_format", (False,), False)
        config.take("lm_head", bool, default=False)
        config.ignore(*_INFORMATION, "checkpoint_format", "format")
        found = cls(
            GptqLayer(
                bits=config.choose("bits", (4, 8)),
                group_size=config.take("group_size", int),
                sym=config.take("sym", bool, default=True),
                desc_act=config.take("desc_act", bool, default=False),
            ),
            version=str(next(iter(versions.values()), "gptq")),
            overrides=_read_overrides(config),
        )
        config.finish()
        return found

    def config(self) -> dict[str, Any]:
        """The `quantization_config` that says what `write` writes."""
        return {
            "quant_method": "gptq",
            "checkpoint_format": self.version,
            "bits": self.default.bits,
            "group_size": self.default.group_size,
            "sym": self.default.sym,
            "desc_act": self.default.desc_act,
            "lm_head": False,
        }

    def linears(self, tensors: Tensors) -> dict[str, tuple[str, ...]]:
        parts = "qweight", "qzeros", "scales"
        return linears_by_suffix(tensors, "qweight", parts, optional=("g_idx",))

    def shape(self, tensors: Tensors, linear: str) -> tuple[int, int]:
        words, out = take(tensors, f"{linear}.qweight", (-1, -1)).shape
        return out, words * 32 // self._layer(linear).bits

    def read(self, tensors: Tensors, linear: str) -> GroupedIntWeight:
        layer = self._layer(linear)
        out, in_features = self.shape(tensors, linear)
        groups = in_features // check_groups(layer.group_size, in_features, linear)
        qzeros = take(tensors, f"{linear}.qzeros", (groups, -(-out * layer.bits // 32)))
        scale = take(tensors, f"{linear}.scales", (groups, out))
        zero = unpack_words(qzeros, layer.bits)[:, :out].astype(np.int32)
        zero += ZERO_SHIFT[self.version]
        _check_symmetry(layer, zero, linear)
        codes = unpack_words(tensors[f"{linear}.qweight"].T, layer.bits)
        g_idx = _read_g_idx(tensors, linear, layer, in_features, groups)
        return make_grouped(layer.bits, codes, scale.T, zero.T, g_idx)

    def write(self, linear: str, weight: Matrix) -> dict[str, npt.NDArray[Any]]:
        bits = self._layer(linear).bits
        if not isinstance(weight, GroupedIntWeight) or weight.bits != bits:
            raise ValueError(f"{linear} must have {bits}-bit integer weights")
        stored_zero = zeros_of(weight) - ZERO_SHIFT[self.version]
        if stored_zero.min(initial=0) < 0 or stored_zero.max(initial=0) >= 1 << bits:
            raise ValueError(f"{self.version} cannot hold these zero points")
        consecutive = np.arange(weight.shape[1], dtype=np.int32) // weight.group_size
        return {
            f"{linear}.qweight": np.ascontiguousarray(pack_words(codes_of(weight), bits).T),
            f"{linear}.qzeros": pack_words(stored_zero.T.astype(np.uint8), bits),
            f"{linear}.scales": np.ascontiguousarray(weight.scale.T),
            f"{linear}.g_idx": consecutive if weight.g_idx is None else weight.g_idx,
        }

    def kv_scales(self, tensors: Tensors) -> dict[str, KVScales]:
        del tensors  # the format has none
        return {}

    def _layer(self, linear: str) -> GptqLayer:
        """The settings of one linear. Raises FormatError when it should not be quantised."""
        for pattern, settings in self.overrides:
            if not re.match(pattern.removeprefix("+:").removeprefix("-:"), linear):
                continue
            if pattern.startswith("-:"):
                raise FormatError(
                    f"quantization_config.dynamic leaves {linear} plain, but it is quantised"
                )
            return replace(self.default, **settings)
        return self.default


def _read_overrides(config: ConfigReader) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """`dynamic`: pattern -> settings; a leading "-:" leaves what it matches unquantised."""
    overrides = config.nested("dynamic")
    if overrides is None:
        return ()
    found = []
    for pattern in overrides.names():
        settings = overrides.nested(pattern)
        assert settings is not None
        values = {
            "bits": settings.choose("bits", (4, 8, None), None),
            "group_size": settings.optional("group_size", int),
            "sym": settings.optional("sym", bool),
            "desc_act": settings.optional("desc_act", bool),
        }
        settings.finish()
        found.append((pattern, {key: value for key, value in values.items() if value is not None}))
    return tuple(found)


def _check_symmetry(layer: GptqLayer, zero: npt.NDArray[np.int32], linear: str) -> None:
    if layer.sym and (zero != 1 << (layer.bits - 1)).any():
        raise FormatError(
            f"quantization_config.sym: true, but {linear}.qzeros holds other zero points"
        )


def _read_g_idx(
    tensors: Tensors, linear: str, layer: GptqLayer, in_features: int, groups: int
) -> I32Array | None:
    if f"{linear}.g_idx" not in tensors:
        return None
    g_idx = take(tensors, f"{linear}.g_idx", (in_features,)).astype(np.int32)
    if g_idx.min(initial=0) < 0 or g_idx.max(initial=0) >= groups:
        raise FormatError(f"tensor '{linear}.g_idx' names groups outside 0 .. {groups - 1}")
    consecutive = np.array_equal(g_idx, np.arange(in_features) // (in_features // groups))
    if not (layer.desc_act or consecutive):
        raise FormatError(
            f"quantization_config.desc_act: false, but {linear}.g_idx is not in order"
        )
    return g_idx
