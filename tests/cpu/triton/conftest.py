"""These tests interpret the kernels on the CPU: tests/conftest.py turns the interpreter on."""

from __future__ import annotations

import pytest
from hasten.kernels.triton.backend import TritonBackend


@pytest.fixture(scope="session")
def backend() -> TritonBackend:
    return TritonBackend()
