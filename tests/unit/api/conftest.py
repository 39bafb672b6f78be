"""Servers in a thread, over an engine process without a model."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hasten.api.cli.local_server import local_server
from hasten.api.http.server import Parts
from hasten.core.options import EngineOptions

from tests.helpers.fake_engine import load_byte_tokenizer


def _serve(factory: str) -> Iterator[httpx.Client]:
    parts = Parts(f"tests.helpers.fake_engine:{factory}", load_byte_tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        # The engine process must find the fake.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        with (
            local_server(EngineOptions(), parts) as server,
            httpx.Client(base_url=server.url, headers=server.headers, timeout=30) as client,
        ):
            yield client


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    """A client, key included, of a server that answers with the prompt, as fast as it goes."""
    yield from _serve("build_fake")


@pytest.fixture(scope="session")
def slow_http() -> Iterator[httpx.Client]:
    """The same at 20 ms for each token."""
    yield from _serve("build_slow")
