"""compressed-tensors checkpoints: packed integers and fp8, several schemes in one model.

`config_groups` maps targets (a module name, `re:` and a pattern, or the class `Linear`) to the
arguments of weights and of input activations; `ignore` names, the same way, what stays plain.

    pack-quantized    weight_packed i32 [out, in / p], codes in order, p = 32 / bits; weight_shape
                      i64 [2]; weight_scale [out, groups]; asymmetric: weight_zero_point i32
                      [out / p, groups], packed along outputs; act-order: weight_g_idx i32 [in]
    float-quantized   weight e4m3 [out, in]; weight_scale [1], [out, 1] or [ceil(out / 128),
                      ceil(in / 128)]; static activations: input_scale [1]
    kv_cache_scheme   k_scale and v_scale [1] beside an attention module's projections

Source: the compressors of compressed-tensors 0.19. Exercised by
`pytest tests/unit/quant/test_formats_packed.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hasten.kernels.weights import (
    FP8_GROUP,
    ActivationScheme,
    Fp8Weight,
    GroupedIntWeight,
    Matrix,
)
from hasten.quant.formats.base import (
    FormatError,
    KVScales,
    Tensors,
    check_groups,
    linears_by_suffix,
    scalar,
    take,
)
from hasten.quant.formats.compressed_tensors_config import (
    FLOAT,
    PACKED,
    Fp8Scheme,
    Groups,
    IntScheme,
    Scheme,
    make_config,
    read_config,
)
from hasten.quant.formats.config import ConfigReader
from hasten.quant.formats.fp8_tensors import fp8_linears, read_kv_scales, tensor_scale
from hasten.quant.integers import (
    codes_of,
    make_grouped,
    pack_words,
    unpack_words,
    zeros_of,
)


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    """One checkpoint: schemes by target, targets left plain, and whether it has cache scales."""

    groups: Groups
    ignore: tuple[str, ...] = ()
    static_kv: bool = False
    name: str = "compressed-tensors"

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> CompressedTensorsFormat:
        return cls(*read_config(ConfigReader(values)))

    def config(self) -> dict[str, Any]:
        """The `quantization_config` that says what `write` writes."""
        return make_config(self.groups, self.ignore, static_kv=self.static_kv)

    def linears(self, tensors: Tensors) -> dict[str, tuple[str, ...]]:
        optional = ("weight_zero_point", "weight_g_idx")
        parts = ("weight_packed", "weight_scale", "weight_shape")
        found = linears_by_suffix(tensors, "weight_packed", parts, optional)
        for linear in fp8_linears(tensors):
            static = f"{linear}.input_scale"
            names = (f"{linear}.weight", f"{linear}.weight_scale")
            found[linear] = (*names, static) if static in tensors else names
        for linear in found:
            self._check_scheme(tensors, linear)
        return found

    def shape(self, tensors: Tensors, linear: str) -> tuple[int, int]:
        if f"{linear}.weight" in tensors:
            out, in_features = take(tensors, f"{linear}.weight", (-1, -1)).shape
            return out, in_features
        out, in_features = (int(n) for n in take(tensors, f"{linear}.weight_shape", (2,)))
        return out, in_features

    def read(self, tensors: Tensors, linear: str) -> Matrix:
        scheme = self.scheme(linear)
        assert scheme is not None, "linears() checks it"
        if isinstance(scheme, IntScheme):
            return _read_int(tensors, linear, scheme, self.shape(tensors, linear))
        return _read_fp8(tensors, linear, scheme, self.shape(tensors, linear))

    def write(self, linear: str, weight: Matrix) -> dict[str, npt.NDArray[Any]]:
        scheme = self.scheme(linear)
        match scheme, weight:
            case IntScheme(), GroupedIntWeight():
                tensors = _write_int(weight, scheme)
            case Fp8Scheme(), Fp8Weight():
                tensors = _write_fp8(weight)
            case _:
                raise ValueError(f"{linear} is {type(weight).__name__}, its scheme is {scheme}")
        return {f"{linear}.{last}": tensor for last, tensor in tensors.items()}

    def kv_scales(self, tensors: Tensors) -> dict[str, KVScales]:
        scales = read_kv_scales(tensors)
        if bool(scales) != self.static_kv:
            state = "has" if scales else "has no"
            raise FormatError(
                f"quantization_config.kv_cache_scheme: contradicts the checkpoint, which {state} "
                "k_scale and v_scale"
            )
        return scales

    def scheme(self, linear: str) -> Scheme | None:
        """The scheme of a linear, None where it stays plain. Names go before patterns."""
        if any(_matches(target, linear) for target in self.ignore):
            return None
        for wanted in (_is_name, _is_pattern, _is_class):
            for targets, scheme in self.groups:
                if any(wanted(target) and _matches(target, linear) for target in targets):
                    return scheme
        return None

    def _check_scheme(self, tensors: Tensors, linear: str) -> None:
        scheme = self.scheme(linear)
        packed = f"{linear}.weight_packed" in tensors
        stored = PACKED if packed else FLOAT
        if scheme is None:
            raise FormatError(f"quantization_config.ignore: leaves {linear} plain, it is {stored}")
        if isinstance(scheme, IntScheme) != packed:
            raise FormatError(
                f"quantization_config.config_groups: {linear} is {stored}, its group says otherwise"
            )


def _is_class(target: str) -> bool:
    return target == "Linear"


def _is_pattern(target: str) -> bool:
    return target.startswith("re:")


def _is_name(target: str) -> bool:
    return not (_is_class(target) or _is_pattern(target))


def _matches(target: str, linear: str) -> bool:
    if _is_class(target):
        return True
    if _is_pattern(target):
        return re.match(target.removeprefix("re:"), linear) is not None
    return target == linear


def _read_int(
    tensors: Tensors, linear: str, scheme: IntScheme, shape: tuple[int, int]
) -> GroupedIntWeight:
    out, in_features = shape
    groups = in_features // check_groups(scheme.group_size, in_features, linear)
    per_word = 32 // scheme.bits
    packed = take(tensors, f"{linear}.weight_packed", (out, -(-in_features // per_word)))
    scale = take(tensors, f"{linear}.weight_scale", (out, groups))
    codes = unpack_words(packed, scheme.bits)[:, :in_features]
    zero = np.full(scale.shape, 1 << (scheme.bits - 1), np.uint8)
    if (f"{linear}.weight_zero_point" in tensors) == scheme.symmetric:
        raise FormatError(
            f"quantization_config: symmetric is {scheme.symmetric}, contradicting "
            f"{linear}.weight_zero_point"
        )
    if not scheme.symmetric:
        words = take(tensors, f"{linear}.weight_zero_point", (-(-out // per_word), groups))
        zero = unpack_words(words.T, scheme.bits)[:, :out].T
    g_idx = None
    if scheme.act_order:
        g_idx = take(tensors, f"{linear}.weight_g_idx", (in_features,)).astype(np.int32)
        if g_idx.min(initial=0) < 0 or g_idx.max(initial=0) >= groups:
            raise FormatError(f"tensor '{linear}.weight_g_idx' names unknown groups")
    return make_grouped(scheme.bits, codes, scale, zero, g_idx)


def _write_int(weight: GroupedIntWeight, scheme: IntScheme) -> dict[str, npt.NDArray[Any]]:
    zero, middle = zeros_of(weight), 1 << (weight.bits - 1)
    if scheme.symmetric and (zero != middle).any():
        raise ValueError("a symmetric scheme has no zero points")
    tensors: dict[str, npt.NDArray[Any]] = {
        "weight_packed": pack_words(codes_of(weight), weight.bits),
        "weight_scale": weight.scale,
        "weight_shape": np.asarray(weight.shape, np.int64),
    }
    if not scheme.symmetric:
        words = pack_words(zero.T.astype(np.uint8), weight.bits)
        tensors["weight_zero_point"] = np.ascontiguousarray(words.T)
    if weight.g_idx is not None:
        tensors["weight_g_idx"] = weight.g_idx
    return tensors


def _read_fp8(
    tensors: Tensors, linear: str, scheme: Fp8Scheme, shape: tuple[int, int]
) -> Fp8Weight:
    out, in_features = shape
    scale_name = f"{linear}.weight_scale"
    if scheme.strategy == "tensor":
        block, scale = shape, tensor_scale(tensors, scale_name)
    elif scheme.strategy == "channel":
        block, scale = (1, in_features), take(tensors, scale_name, (out, 1))
    else:
        block = FP8_GROUP, FP8_GROUP
        blocks = -(-out // FP8_GROUP), -(-in_features // FP8_GROUP)
        scale = take(tensors, scale_name, blocks)
    static = scheme.activations is ActivationScheme.STATIC
    if static != (f"{linear}.input_scale" in tensors):
        raise FormatError(f"quantization_config: activations contradict {linear}.input_scale")
    input_scale = scalar(tensors, f"{linear}.input_scale") if static else None
    return Fp8Weight(tensors[f"{linear}.weight"], scale, block, scheme.activations, input_scale)


def _write_fp8(weight: Fp8Weight) -> dict[str, npt.NDArray[Any]]:
    per_tensor = weight.block == weight.shape
    tensors: dict[str, npt.NDArray[Any]] = {
        "weight": weight.data,
        "weight_scale": weight.scale.reshape(1) if per_tensor else weight.scale,
    }
    if weight.input_scale is not None:
        tensors["input_scale"] = np.asarray([weight.input_scale], weight.scale.dtype)
    return tensors
