"""Options of the whole suite."""

from __future__ import annotations

import os

# Before anything imports torch: tiny models gain nothing from a second thread, and threads that
# spin for work slow each other down many times on a busy machine. Tests of threads set their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# Before anything imports triton: its kernels run on the CPU in tests/cpu/triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
from hasten.kernels.backend import BACKENDS, available_backends


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kernels",
        action="append",
        choices=BACKENDS,
        help="run tests with a `kernels` argument on this backend only (may be repeated)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `kernels` runs once per backend that works here."""
    if "kernels" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--kernels") or available_backends()
        metafunc.parametrize("kernels", chosen, scope="module")
