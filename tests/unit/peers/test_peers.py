"""The comparison with other engines: its arithmetic, how it speaks to workers, its page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hasten.evals.load.errors import LoadError
from hasten.evals.peers import worker as worker_module
from hasten.evals.peers.measure import Figure
from hasten.evals.peers.report import write_report
from hasten.evals.peers.worker import FOLDER, running_worker

SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from protocol import answer_calls

def generate(prompts, output_len):
    print("noise of an engine")
    assert len(set(map(tuple, prompts))) == len(prompts)
    return 1.0 + 0.5 * len(prompts) * (output_len - 1)

answer_calls(lambda: generate)
"""


def test_decoding_is_what_tokens_after_the_first_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stub.py").write_text(SCRIPT.format(folder=str(FOLDER)))
    monkeypatch.setattr(worker_module, "FOLDER", tmp_path)
    python = Path(sys.executable)
    with running_worker("stub", python, "stub.py", (), tmp_path / "log") as worker:
        assert worker.decode_tokens_per_s(4) == pytest.approx(2.0)
        assert worker.prompt_tokens_per_s(512) == 512
    assert "noise of an engine" in (tmp_path / "log").read_text()


def test_a_worker_that_does_not_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stub.py").write_text("raise SystemExit('no such library')")
    monkeypatch.setattr(worker_module, "FOLDER", tmp_path)
    worker = running_worker("stub", Path(sys.executable), "stub.py", (), tmp_path / "log")
    with pytest.raises(LoadError, match="stub did not start; see"), worker:
        pass
    assert "no such library" in (tmp_path / "log").read_text()


SPEED = Figure(name="decode", unit="tokens/s", samples={"hasten": [300, 100, 200], "a": [90, 100]})
DELAY = Figure(
    name="first token", unit="ms", samples={"hasten": [5], "a": [9], "b": [7]}, is_less_better=True
)


def test_ratios_are_against_the_best_of_the_others() -> None:
    assert SPEED.ratio("hasten") == pytest.approx(200 / 95)
    assert DELAY.ratio("hasten") == pytest.approx(7 / 5)
    assert Figure(name="alone", unit="s", samples={"hasten": [1]}).ratio("hasten") is None


def test_the_page_has_every_engine_and_ratio(tmp_path: Path) -> None:
    write_report([SPEED, DELAY], 3, tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert "| work | unit | hasten | a | b | ratio |" in page
    assert "| decode | tokens/s | 200 | 95 |  | 2.11 |" in page
    assert "| first token | ms | 5.0 | 9.0 | 7.0 | 1.40 |" in page
    assert "<svg" in (tmp_path / "performance.svg").read_text()
