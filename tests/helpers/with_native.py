"""Runs pytest with another build of the native kernels, such as one with sanitizers.

    cmake -S . -B build/asan -G Ninja -DHASTEN_SANITIZE=address,undefined && ninja -C build/asan
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
        python -m tests.helpers.with_native build/asan tests/cpu/native
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

NAME = "hasten.kernels.cpu._native"


def use_build(folder: Path) -> None:
    """Import the module of a CMake build folder in place of the installed one."""
    built = next(folder.glob("_native*.so"))
    spec = importlib.util.spec_from_file_location(NAME, built)
    assert spec is not None
    assert spec.loader is not None
    import hasten.kernels.cpu

    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    hasten.kernels.cpu._native = module


if __name__ == "__main__":
    use_build(Path(sys.argv[1]))
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
