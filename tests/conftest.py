"""Options of the whole suite."""

from __future__ import annotations

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
