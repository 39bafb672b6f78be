from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hasten.core.options import ConfigurationError
from hasten.evals.cli.main import cli
from hasten.evals.cli.targets import engine_options, url_options

from tests.unit.evals.fakes import FakeTarget
from tests.unit.evals.runs import opened, run


def evals(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with opened(root) as store:
        run(store, FakeTarget("base"), FakeTarget("good", noise=0.01))
        run(store, FakeTarget("base"), FakeTarget("bad", noise=0.5))
    return root


def ids(root: Path) -> list[str]:
    listed = evals("list", "--store", str(root)).stdout.splitlines()
    return [line.split("\t")[0] for line in listed]


def test_list_and_report_end_by_the_verdict(root: Path, tmp_path: Path) -> None:
    good, bad = ids(root)
    passed = evals("report", good, "--store", str(root), "--output", str(tmp_path / "out"))
    assert passed.exit_code == 0
    assert "pass: all 7 measures" in passed.stdout
    assert (tmp_path / "out" / "report.html").exists()
    assert evals("report", bad, "--store", str(root)).exit_code == 1


def test_compare(root: Path) -> None:
    good, bad = ids(root)[:2]
    assert evals("compare", good, bad, "--store", str(root)).exit_code == 1
    assert evals("compare", good, good, "--store", str(root)).exit_code == 0


def test_baselines_are_saved_and_listed(root: Path) -> None:
    good = ids(root)[0]
    saved = evals("baseline", "save", "v1", good, "--store", str(root))
    assert (saved.exit_code, saved.stdout) == (0, "v1: good\n")
    assert f"v1\tcandidate of {good}" in evals("baseline", "list", "--store", str(root)).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "no-such-suite"), "no suite 'no-such-suite'"),
        (("run", "quick", "--candidate-args", "--dtypo float32"), "No such option"),
        (("run", "quick", "--candidate-args", "--block-size 7"), "--block-size must be"),
        (("run", "quick", "--candidate", "/no/such/model"), "/no/such/model"),
        (("run", "quick", "--candidate", "http://127.0.0.1:9"), "http://127.0.0.1:9"),
        (("report", "0123456789"), "no stored run '0123456789'"),
        (("compare", "0123456789", "0123456789"), "no stored run"),
    ],
)
def test_errors_are_one_line_and_exit_status_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = evals(*arguments, "--store", str(tmp_path))
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.glob("records/*"))


def test_resume_and_fresh_exclude_each_other() -> None:
    assert evals("run", "quick", "--resume", "--fresh").exit_code == 2


def test_flags_of_a_side_are_those_of_serve() -> None:
    options = engine_options("some/model", "--quantization int8 --no-enable-prefix-caching")
    assert options.model.model == "some/model"
    assert options.model.quantization == "int8"
    assert not options.cache.enable_prefix_caching
    assert url_options("--tokenizer there --max-len 100").max_len == 100
    with pytest.raises(ConfigurationError, match="No closing quotation"):
        engine_options("m", "--model 'x")
