"""The conformance suite on the instruction sets that `tests/cpu/kernels` does not use by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hasten.kernels.conformance import run_conformance
from hasten.kernels.cpu import CpuBackend

OPS = (
    "rope_store_kv",
    "paged_attention",
    "norm_columns",
    "add_scaled",
    "scale_logits",
    "route",
    "grouped_linear",
    "combine_experts",
)
"""Those that no other test of this folder holds against an oracle."""


def test_ops_conform_on_every_instruction_set(
    isa: str, make_backend: Callable[..., CpuBackend]
) -> None:
    if isa == make_backend(1).isa:
        pytest.skip("checked by tests/cpu/kernels/test_conformance.py")
    report = run_conformance(make_backend(1, isa=isa), ops=OPS)
    assert [f"{row.op} {row.case}: {row.reason}" for row in report.failed] == []
    assert report.refused == ()
