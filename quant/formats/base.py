"""What every checkpoint format shares: its protocol, its error, and checks of groups.

A *format* reads the tensors that a quantising tool wrote for one linear layer, named by its module
path (`model.layers.0.mlp.up_proj`), into a weight that means the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy.typing as npt
    from hasten.kernels.weights import Matrix

GROUP_SIZES = (32, 64, 128)


class FormatError(ValueError):
    """A quantised checkpoint that cannot be read; the message names the field or tensor."""


Tensors = Mapping[str, "npt.NDArray[Any]"]
"""A checkpoint's tensors by name, mapped lazily; bf16 and fp8 ones with types of `ml_dtypes`."""


@dataclass(frozen=True, slots=True)
class KVScales:
    """Static scales of one layer's fp8 cache: stored = value / scale."""

    k: float
    v: float


class QuantFormat(Protocol):
    """How one checkpoint stores its quantised linears."""

    @property
    def name(self) -> str: ...

    def linears(self, tensors: Tensors) -> dict[str, tuple[str, ...]]:
        """Every quantised linear, with the names of the tensors that hold it.

        Linears that the checkpoint keeps plain are not in it. Raises FormatError when the
        configuration says otherwise than the tensors.
        """
        ...

    def shape(self, tensors: Tensors, linear: str) -> tuple[int, int]:
        """[out, in] of one of `linears`, without reading it."""
        ...

    def read(self, tensors: Tensors, linear: str) -> Matrix:
        """The weight of one of `linears`. Raises FormatError."""
        ...

    def kv_scales(self, tensors: Tensors) -> dict[str, KVScales]:
        """Static cache scales by attention module; its tensors are `k_scale` and `v_scale`."""
        ...


class CheckpointWriter(Protocol):
    """A format that can be written too; reading what it wrote gives the same weights."""

    def config(self) -> dict[str, Any]:
        """The `quantization_config` that says what `write` writes."""
        ...

    def write(self, linear: str, weight: Matrix) -> dict[str, npt.NDArray[Any]]:
        """The tensors that hold one linear. Raises ValueError for schemes it cannot hold."""
        ...


def linears_by_suffix(
    tensors: Tensors, suffix: str, parts: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, tuple[str, ...]]:
    """The linears with a tensor `suffix`, and their tensors. A plain weight beside it is wrong."""
    found = {}
    for name in tensors:
        linear, _, last = name.rpartition(".")
        if last != suffix:
            continue
        if f"{linear}.weight" in tensors:
            raise FormatError(f"{linear} has both a {suffix!r} and a plain 'weight'")
        also = tuple(part for part in optional if f"{linear}.{part}" in tensors)
        found[linear] = tuple(f"{linear}.{part}" for part in (*parts, *also))
    return found


def take(tensors: Tensors, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Tensor `name`, which must have `shape` (-1: any length). Raises FormatError."""
    if name not in tensors:
        raise FormatError(f"tensor {name!r} is missing")
    tensor = tensors[name]
    fits = len(tensor.shape) == len(shape) and all(
        wanted in (-1, found) for found, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        raise FormatError(f"tensor {name!r} has shape {tensor.shape}, not {shape}")
    return tensor


def check_groups(group_size: int, in_features: int, linear: str) -> int:
    """The group size in inputs (-1 or all inputs: a row). Raises FormatError naming what fits."""
    if group_size in (-1, in_features):
        return in_features
    fitting = [size for size in GROUP_SIZES if in_features % size == 0]
    if group_size not in fitting:
        raise FormatError(
            f"quantization_config.group_size: {group_size} does not fit the {in_features} inputs "
            f"of {linear}; possible: {', '.join(map(str, fitting))}, -1 (a row)"
        )
    return group_size


def scalar(tensors: Tensors, name: str) -> float:
    """The one number in a tensor, which must be finite and positive. Raises FormatError."""
    if name not in tensors:
        raise FormatError(f"tensor {name!r} is missing")
    tensor = tensors[name]
    if tensor.size != 1:
        raise FormatError(f"tensor {name!r} has shape {tensor.shape}, not one number")
    value = float(tensor.reshape(())[()])
    if not 0 < value < float("inf"):
        raise FormatError(f"tensor {name!r} holds {value}, not a positive number")
    return value
