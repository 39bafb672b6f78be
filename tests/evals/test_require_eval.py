"""`hasten serve --require-eval` serves what has a passing record, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hasten.evals.engine_target import EngineTarget
from hasten.evals.gate import Verdict
from hasten.evals.record import Record
from hasten.evals.store import Store
from hasten.evals.suite import load_suite

from tests.helpers.server_process import server_process

KEY = b"a secret of the release team"


@pytest.fixture(name="store", scope="module")
def _store(embedded: EngineTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed record by which the embedded model, as these tests serve it, passes `quick`."""
    root = tmp_path_factory.mktemp("store")
    record = Record(
        created="2024-01-01T00:00:00+00:00",
        suite=load_suite("quick"),
        baseline=embedded.configuration,
        candidate=embedded.configuration,
        data={},
        blocks=[],
        judgements=[],
        verdict=Verdict.PASS,
    )
    Store(root, KEY).save(record)
    return root


def arguments(flags: str, store: Path, *more: str) -> list[str]:
    return [
        "--port=0", *flags.split(), "--require-eval", "quick", "--eval-store", str(store), *more
    ]  # fmt: skip


def test_what_has_passed_is_served(flags: str, store: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY + b"\n")
    signed = arguments(flags, store, "--eval-key-file", str(key_file))
    with server_process(tmp_path, signed) as server:
        assert server.url, server.log
        assert any(line.startswith("evaluated: record") for line in server.log)
        with server.client() as client:
            assert client.get("/ready").status_code == 200


def test_what_differs_is_named_and_not_served(flags: str, store: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    changed = arguments(flags, store, "--chat-template", str(template))
    with server_process(tmp_path, changed) as server:
        assert server.process.wait(60) == 1
        assert not server.url
    [line] = [line for line in server.log if line.startswith("Error")]
    assert "--require-eval quick: no passing 'quick' record of exactly this configuration" in line
    assert "the nearest differs in chat_template:" in line
    assert server.left_behind() == []
