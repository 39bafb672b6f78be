"""The native backend, or a skip that says why it is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hasten.kernels.cpu import CpuBackend, why_unavailable

ISAS = ("amx", "avx512", "avx2", "portable")


@pytest.fixture(scope="session", params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set that this machine has."""
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    try:
        return CpuBackend(1, isa=request.param).isa
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def make_backend() -> Callable[..., CpuBackend]:
    reason = why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    return CpuBackend
