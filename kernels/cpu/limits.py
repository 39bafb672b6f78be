"""The limits of this machine, measured by the native kernels: what a step's speed is held against.

Bytes: the threads together read memory that no cache holds. Multiply-adds: products of bytes that
never leave the registers, by the instructions that the products of int4 and int8 weights use.
Both take a fraction of a second and want a quiet machine. Exercised by
`pytest tests/cpu/native/test_limits.py` and shown by `hasten bench latency`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from hasten.kernels.cpu import CpuBackend

MIN_READ_BYTES = 256 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class MachineLimits(msgspec.Struct, frozen=True):
    """What all threads of a backend can do in a second, at most."""

    bytes_per_s: float
    multiply_adds_per_s: float


def measure_limits(backend: CpuBackend) -> MachineLimits:
    from hasten.kernels.cpu import _native

    isa, num_threads = backend.isa, backend.num_threads
    num_bytes = max(MIN_READ_BYTES, 4 * largest_cache_bytes())
    return MachineLimits(
        _native.bytes_per_second(isa, num_threads, num_bytes),
        _native.multiply_adds_per_second(isa, num_threads),
    )


def largest_cache_bytes(folder: Path = CACHES) -> int:
    """Of a processor, as the kernel knows it (sysfs-devices-system-cpu); 0 where it does not."""
    sizes = (path.read_text().strip() for path in folder.glob("index*/size"))
    return max((int(size[:-1]) << 10 for size in sizes if size.endswith("K")), default=0)
