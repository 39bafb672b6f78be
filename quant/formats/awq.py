"""AutoAWQ checkpoints, layouts `gemm` and `gemv`: 4 bit, a zero point per group.

With g = group size, per linear:

    gemm    qweight i32 [in, out / 8]   qzeros i32 [in / g, out / 8]   scales [in / g, out]
    gemv    qweight i32 [out, in / 8]   qzeros i32 [out, z]            scales [out, 8 z]

In gemm, nibble i of word c belongs to column 8 c + ORDER[i]. In gemv nibbles are in order and z
is the number of groups over 8, rounded up to what its kernels wanted; the rest is padding.
Source: the layer classes of AutoAWQ 0.2.9. Exercised by
`pytest tests/unit/quant/test_formats_packed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
from hasten.quant.integers import codes_of, make_grouped, pack_words, unpack_words, zeros_of

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LAYOUTS = ("gemm", "gemv")


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """One AutoAWQ checkpoint."""

    layout: str
    group_size: int
    zero_point: bool
    name: str = "awq"

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> AwqFormat:
        config = ConfigReader(values)
        config.choose("quant_method", ("awq",))
        config.choose("method", ("awq",), "awq")
        config.choose("bits", (4,))
        layouts = {
            key: config.choose(key, LAYOUTS)
            for key in ("version", "format", "checkpoint_format")
            if values.get(key) is not None
        }
        config.choose("desc_act", (False,), False)
        config.choose("pack_dtype", ("int32",), "int32")
        config.choose("dynamic", (None,), None)
        config.take("modules_to_not_convert", list, [])
        config.take("lm_head", bool, default=False)
        config.ignore("meta", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse")
        config.ignore("exllama_config", "version", "format", "checkpoint_format")
        found = cls(
            _one_layout(config, layouts),
            config.take("group_size", int),
            config.take("zero_point", bool),
        )
        config.finish()
        return found

    def config(self) -> dict[str, Any]:
        """The `quantization_config` that says what `write` writes."""
        return {
            "quant_method": "awq",
            "version": self.layout,
            "bits": 4,
            "group_size": self.group_size,
            "zero_point": self.zero_point,
            "modules_to_not_convert": None,
        }

    def linears(self, tensors: Tensors) -> dict[str, tuple[str, ...]]:
        return linears_by_suffix(tensors, "qweight", ("qweight", "qzeros", "scales"))

    def shape(self, tensors: Tensors, linear: str) -> tuple[int, int]:
        rows, words = take(tensors, f"{linear}.qweight", (-1, -1)).shape
        return (8 * words, rows) if self.layout == "gemm" else (rows, 8 * words)

    def read(self, tensors: Tensors, linear: str) -> GroupedIntWeight:
        codes, zero, scale = (
            self._read_gemm(tensors, linear)
            if self.layout == "gemm"
            else self._read_gemv(tensors, linear)
        )
        if not self.zero_point and (zero != 8).any():
            raise FormatError(
                f"quantization_config.zero_point: false, but {linear}.qzeros holds others than 8"
            )
        return make_grouped(4, codes, scale, zero)

    def write(self, linear: str, weight: Matrix) -> dict[str, npt.NDArray[Any]]:
        if not isinstance(weight, GroupedIntWeight) or weight.bits != 4 or weight.g_idx is not None:
            raise ValueError("AWQ holds 4-bit weights in consecutive groups")
        codes, zero = codes_of(weight), zeros_of(weight)
        if zero.min(initial=0) < 0 or zero.max(initial=0) > 15:
            raise ValueError("AWQ holds zero points from 0 to 15")
        zero_codes = zero.astype(np.uint8)
        if self.layout == "gemm":
            if len(codes) % 8:
                raise ValueError(f"AWQ packs outputs by 8, {linear} has {len(codes)}")
            return {
                f"{linear}.qweight": pack_words(codes.T, 4, ORDER),
                f"{linear}.qzeros": pack_words(zero_codes.T, 4, ORDER),
                f"{linear}.scales": np.ascontiguousarray(weight.scale.T),
            }
        width = gemv_zeros_width(weight.shape[1], weight.group_size)
        pad = ((0, 0), (0, 8 * width - zero.shape[1]))
        return {
            f"{linear}.qweight": pack_words(codes, 4),
            f"{linear}.qzeros": pack_words(np.pad(zero_codes, pad), 4),
            f"{linear}.scales": np.pad(weight.scale, pad),
        }

    def kv_scales(self, tensors: Tensors) -> dict[str, KVScales]:
        del tensors  # the format has none
        return {}

    def _read_gemm(self, tensors: Tensors, linear: str) -> tuple[Any, Any, Any]:
        out, in_features = self.shape(tensors, linear)
        groups = in_features // check_groups(self.group_size, in_features, linear)
        qzeros = take(tensors, f"{linear}.qzeros", (groups, out // 8))
        scale = take(tensors, f"{linear}.scales", (groups, out))
        codes = unpack_words(tensors[f"{linear}.qweight"], 4, ORDER)
        return codes.T, unpack_words(qzeros, 4, ORDER).T, scale.T

    def _read_gemv(self, tensors: Tensors, linear: str) -> tuple[Any, Any, Any]:
        out, in_features = self.shape(tensors, linear)
        group_size = check_groups(self.group_size, in_features, linear)
        groups, width = in_features // group_size, gemv_zeros_width(in_features, group_size)
        qzeros = take(tensors, f"{linear}.qzeros", (out, width))
        scale = take(tensors, f"{linear}.scales", (out, 8 * width))
        codes = unpack_words(tensors[f"{linear}.qweight"], 4)
        return codes, unpack_words(qzeros, 4)[:, :groups], scale[:, :groups]


def gemv_zeros_width(in_features: int, group_size: int) -> int:
    """Words of zero points per output in the gemv layout."""
    words = -(-(in_features // group_size) // 8)
    multiple = max(1, 128 // group_size)
    return -(-words // multiple) * multiple


def _one_layout(config: ConfigReader, layouts: dict[str, Any]) -> str:
    if not layouts:
        raise config.error("version", "is missing")
    if len(set(layouts.values())) > 1:
        raise config.error("version", f"contradicts itself: {layouts}")
    return str(next(iter(layouts.values())))
