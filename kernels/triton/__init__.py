"""The Triton backend: kernels for NVIDIA GPUs, tuned for Hopper, provable without one.

Importing `hasten.kernels.triton.backend` imports torch and triton. Without a CUDA device it runs
under Triton's interpreter (TRITON_INTERPRET=1 in the environment before triton is imported):
correct and very slow, for tests. `make kernels` checks the machine code.

Exercised by `pytest tests/cpu/triton`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

__all__ = ["has_device", "why_unavailable"]

_DRIVER = Path("/dev/nvidiactl")


def has_device() -> bool:
    """Whether there is a CUDA device; torch is imported only where there is a driver for one."""
    if not _DRIVER.exists() or importlib.util.find_spec("triton") is None:
        return False
    import torch

    return torch.cuda.is_available()


def why_unavailable() -> str | None:
    """None, or why this backend cannot run in this installation."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1" or has_device():
        return None
    return "there is no CUDA device (TRITON_INTERPRET=1 runs the kernels on the CPU, slowly)"
