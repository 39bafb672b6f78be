"""What this machine gives: memory that is free for us, and giving back what we no longer need.

Exercised by `pytest tests/unit/core/test_host.py`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that can be taken without swapping, within the limit of a container if there is one.

    Source: Linux kernel documentation, admin-guide/cgroup-v2 (memory.max, memory.current).
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = _read_bytes(cgroup / "memory.max"), _read_bytes(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used))


def release_free_memory() -> None:
    """Return freed memory to the system, which the C library keeps for itself otherwise.

    After a model is loaded, that is as much as its weights were. Does nothing where the C library
    is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read_bytes(path: Path) -> int | None:
    """The number in a cgroup file; None where there is no such file, or no limit ("max")."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
