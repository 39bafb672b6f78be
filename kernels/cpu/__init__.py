"""The native CPU backend: programs are replayed in C++, one call per step, without torch.

Built with the package where a C++20 compiler is present (CMakeLists.txt); `why_unavailable` says
what is missing otherwise. Exercised by `pytest tests/cpu/native`.
"""

from __future__ import annotations

import importlib

from hasten.kernels.cpu.backend import CpuBackend, LinearInputs

__all__ = ["CpuBackend", "LinearInputs", "why_unavailable"]


def why_unavailable() -> str | None:
    """None, or why this backend cannot run in this installation."""
    try:
        importlib.import_module("hasten.kernels.cpu._native")
    except ImportError as error:
        return f"the native kernels are not built ({error})"
    return None
