"""The tensors that the fp8 formats share: e4m3 weights, scales of one number, cache scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from hasten.quant.formats.base import FormatError, KVScales, Tensors, scalar

if TYPE_CHECKING:
    import numpy.typing as npt

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def fp8_linears(tensors: Tensors) -> Iterator[str]:
    """The modules whose plain `weight` is e4m3."""
    for name in tensors:
        if name.endswith(".weight") and tensors[name].dtype == E4M3:
            yield name.removesuffix(".weight")


def tensor_scale(tensors: Tensors, name: str) -> npt.NDArray[Any]:
    """The scale of a whole tensor as [1, 1], in the type that the checkpoint stores it in."""
    scalar(tensors, name)
    return tensors[name].reshape(1, 1)


def read_kv_scales(tensors: Tensors) -> dict[str, KVScales]:
    """Cache scales by attention module. Raises FormatError when one of a pair is missing."""
    found = {}
    for name in tensors:
        attention, _, last = name.rpartition(".")
        if last not in ("k_scale", "v_scale") or attention in found:
            continue
        for other in ("k_scale", "v_scale"):
            if f"{attention}.{other}" not in tensors:
                raise FormatError(f"tensor '{attention}.{other}' is missing")
        found[attention] = KVScales(
            k=scalar(tensors, f"{attention}.k_scale"), v=scalar(tensors, f"{attention}.v_scale")
        )
    return found
