"""Element types of buffers, weights and KV caches, named without torch.

Exercised by every test of `kernels`; `itemsize` is what the memory plan counts with.
"""

from __future__ import annotations

import enum


class DType(enum.StrEnum):
    """An element type as ops and memory plans name it."""

    F32 = "float32"
    BF16 = "bfloat16"
    F16 = "float16"
    FP8_E4M3 = "fp8_e4m3"
    I32 = "int32"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {DType.F32: 4, DType.BF16: 2, DType.F16: 2, DType.FP8_E4M3: 1, DType.I32: 4}
