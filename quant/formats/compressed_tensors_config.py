"""The `quantization_config` of compressed-tensors: every field read, or refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hasten.kernels.weights import FP8_GROUP, ActivationScheme
from hasten.quant.formats.config import ConfigReader

PACKED, FLOAT = "pack-quantized", "float-quantized"


@dataclass(frozen=True, slots=True)
class IntScheme:
    """Packed integer weights; `group_size` -1 is a row."""

    bits: int
    group_size: int
    symmetric: bool
    act_order: bool = False


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """e4m3 weights scaled per `strategy`: tensor, channel or block."""

    strategy: str
    activations: ActivationScheme


Scheme = IntScheme | Fp8Scheme

Groups = tuple[tuple[tuple[str, ...], Scheme], ...]
"""Schemes with their targets."""

_INFORMATION = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")


def read_config(config: ConfigReader) -> tuple[Groups, tuple[str, ...], bool]:
    """The fields of `CompressedTensorsFormat`. Raises FormatError."""
    config.choose("quant_method", ("compressed-tensors",))
    config.choose("quantization_status", ("compressed", "frozen"), "compressed")
    config.choose("sparsity_config", ({}, None), None)
    config.choose("transform_config", ({}, None), None)
    config.ignore("version", "global_compression_ratio")
    layout = config.choose("format", (PACKED, FLOAT, "mixed-precision"))
    groups = config.nested("config_groups")
    if groups is None:
        raise config.error("config_groups", "is missing")
    read = tuple(_read_group(groups, name, layout) for name in groups.names())
    ignore = tuple(config.take("ignore", list, []))
    static_kv = _read_kv_scheme(config)
    config.finish()
    return read, ignore, static_kv


def _read_group(groups: ConfigReader, name: str, layout: str) -> tuple[tuple[str, ...], Scheme]:
    group = groups.nested(name)
    if group is None:
        raise groups.error(name, "is empty")
    allowed = (PACKED, FLOAT) if layout == "mixed-precision" else (layout,)
    stored = group.choose("format", (*allowed, None), None) or layout
    targets = tuple(group.take("targets", list))
    group.choose("output_activations", (None,), None)
    weights = group.nested("weights")
    if weights is None:
        raise group.error("weights", "is missing")
    inputs = group.nested("input_activations")
    scheme = _read_int(group, weights) if stored == PACKED else _read_fp8(weights, inputs)
    group.finish()
    return targets, scheme


def _read_int(group: ConfigReader, weights: ConfigReader) -> IntScheme:
    group.choose("input_activations", (None,), None)
    weights.choose("type", ("int",))
    weights.choose("dynamic", (False,), False)
    weights.choose("block_structure", (None,), None)
    strategy = weights.choose("strategy", ("group", "channel"))
    group_size = weights.take("group_size", int, -1)
    if (strategy == "channel") != (group_size == -1):
        raise weights.error("group_size", f"{group_size} contradicts strategy {strategy!r}")
    order = weights.choose("actorder", (None, "weight", "static", "group", "dynamic"), None)
    scheme = IntScheme(
        bits=weights.choose("num_bits", (4, 8)),
        group_size=group_size,
        symmetric=weights.take("symmetric", bool, default=True),
        act_order=order in ("group", "dynamic"),
    )
    weights.ignore(*_INFORMATION)
    weights.finish()
    return scheme


def _read_fp8(weights: ConfigReader, inputs: ConfigReader | None) -> Fp8Scheme:
    _require_fp8(weights)
    weights.choose("dynamic", (False,), False)
    weights.choose("group_size", (None,), None)
    strategy = weights.choose("strategy", ("tensor", "channel", "block"))
    blocks = (
        ([FP8_GROUP, FP8_GROUP], f"{FP8_GROUP}x{FP8_GROUP}") if strategy == "block" else (None,)
    )
    weights.choose("block_structure", blocks, None)
    weights.finish()
    return Fp8Scheme(strategy, ActivationScheme.NONE if inputs is None else _activations(inputs))


def _require_fp8(arguments: ConfigReader) -> None:
    arguments.choose("type", ("float",))
    arguments.choose("num_bits", (8,))
    arguments.choose("symmetric", (True,), True)
    arguments.choose("actorder", (None,), None)
    arguments.ignore(*_INFORMATION)


def _activations(inputs: ConfigReader) -> ActivationScheme:
    _require_fp8(inputs)
    inputs.choose("block_structure", (None,), None)
    dynamic = inputs.take("dynamic", bool, default=False)
    strategy = inputs.choose("strategy", ("token", "group") if dynamic else ("tensor",))
    inputs.choose("group_size", (FP8_GROUP,) if strategy == "group" else (None,), None)
    inputs.finish()
    schemes = {
        "token": ActivationScheme.TOKEN,
        "group": ActivationScheme.TOKEN_GROUP,
        "tensor": ActivationScheme.STATIC,
    }
    return schemes[strategy]


def _read_kv_scheme(config: ConfigReader) -> bool:
    scheme = config.nested("kv_cache_scheme")
    if scheme is None:
        return False
    _require_fp8(scheme)
    scheme.choose("dynamic", (False,), False)
    scheme.choose("strategy", ("tensor",))
    scheme.choose("group_size", (None,), None)
    scheme.choose("block_structure", (None,), None)
    scheme.finish()
    return True


def make_config(groups: Groups, ignore: tuple[str, ...], *, static_kv: bool) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint written with these schemes."""
    written = {
        f"group_{index}": {"targets": list(targets), **_group_config(scheme)}
        for index, (targets, scheme) in enumerate(groups)
    }
    layouts = {group["format"] for group in written.values()}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
        "config_groups": written,
        "ignore": list(ignore),
        "kv_cache_scheme": _fp8_arguments("tensor", dynamic=False) if static_kv else None,
    }


def _group_config(scheme: Scheme) -> dict[str, Any]:
    if isinstance(scheme, IntScheme):
        weights = {
            "type": "int",
            "num_bits": scheme.bits,
            "strategy": "channel" if scheme.group_size == -1 else "group",
            "group_size": None if scheme.group_size == -1 else scheme.group_size,
            "symmetric": scheme.symmetric,
            "actorder": "group" if scheme.act_order else None,
            "dynamic": False,
        }
        return {"format": PACKED, "weights": weights, "input_activations": None}
    weights = _fp8_arguments(scheme.strategy, dynamic=False)
    if scheme.strategy == "block":
        weights["block_structure"] = [FP8_GROUP, FP8_GROUP]
    inputs = {
        ActivationScheme.NONE: None,
        ActivationScheme.TOKEN: _fp8_arguments("token", dynamic=True),
        ActivationScheme.TOKEN_GROUP: {
            **_fp8_arguments("group", dynamic=True),
            "group_size": FP8_GROUP,
        },
        ActivationScheme.STATIC: _fp8_arguments("tensor", dynamic=False),
    }
    return {
        "format": FLOAT,
        "weights": weights,
        "input_activations": inputs[scheme.activations],
    }


def _fp8_arguments(strategy: str, *, dynamic: bool) -> dict[str, Any]:
    return {
        "type": "float",
        "num_bits": 8,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": dynamic,
    }
