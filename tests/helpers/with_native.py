"""Runs pytest with another build of the native modules, such as one with sanitizers.

    cmake -S . -B build/asan -G Ninja -DHASTEN_SANITIZE=address,undefined && ninja -C build/asan
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
        python -m tests.helpers.with_native build/asan tests/cpu/native
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

FOLDERS = {"hasten.kernels.cpu": ".", "hasten.spec": "spec"}
"""Where a build has the native module of each package."""


def use_build(folder: Path) -> None:
    """Import the modules of a CMake build folder in place of the installed ones."""
    for package, part in FOLDERS.items():
        name = f"{package}._native"
        built = next((folder / part).glob("_native*.so"))
        spec = importlib.util.spec_from_file_location(name, built)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        vars(importlib.import_module(package))["_native"] = module


if __name__ == "__main__":
    use_build(Path(sys.argv[1]))
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
